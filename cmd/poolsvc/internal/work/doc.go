// Package work has the tasks that `poolsvc verify` gives to other processes, and the worker that does them in Go. A task is one JSON
// object in a line. The Python package has a worker for the same tasks.
package work
