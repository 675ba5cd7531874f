// Package work is what `poolsvc verify` has other processes do: tasks, one JSON object a line, and the worker that carries
// them out in Go. The Python package has a worker that understands the same.
package work
