// Package verify proves that processes can share memory on this machine. It starts a service, and workers in other processes. A worker
// checks the memory that this process wrote, or writes memory that this process checks. The package reports the result of each check with
// its name.
//
// The function `plans` (check.go) lists all checks. Each scenario has a file with its checks, and with the tasks that they give to workers:
// a type for each task, and the method with which a worker in Go does it. The Python package has a file for each scenario, too
// (python/poolbridge/_verify). Each check gets a scene, which makes names, pools and workers for this check only. The stage (scene.go) has
// what all checks share. The roster lists the libraries of the Python interpreter.
package verify
