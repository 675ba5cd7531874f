// Package verify proves that processes can share memory on this machine. It starts a service, and workers in other processes. A worker
// checks the memory that this process wrote, or writes memory that this process checks. The package reports the result of each check with
// its name.
//
// Each file with checks has the name of a scenario or of a group of checks. The variable `families` (check.go) lists the functions that
// return the checks. Each check gets a scene, which has names and pools for this check only, and workers that no other check uses at the
// same time. The stage (scene.go) has what all checks share. The roster (roster.go) lists the consumers: this program and the Python
// libraries. The crew (crew.go) starts workers before the checks need them; a role says how to start a worker. turns.go decides which check
// begins next. ledger.go reports results in the order of the checks.
package verify
