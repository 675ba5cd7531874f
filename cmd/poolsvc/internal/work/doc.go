// Package work has the tasks that `poolsvc verify` gives to other processes, and the worker that does the tasks in Go. A task is one JSON
// object on one line. The Python package has a second worker program, which does most of these tasks, and some other tasks.
package work
