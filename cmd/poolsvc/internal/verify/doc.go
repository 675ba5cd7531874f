// Package verify proves that memory can be shared on this machine. It runs a service. Workers in other processes check what Go wrote, and
// write what Go checks. The package reports each check by name.
//
// Files with the names of scenarios contain the checks; the variable families (check.go) lists their functions. A check gets a scene, with
// its own names, pools and workers. The stage (scene.go) has what all checks share. The roster lists the consumers. The crew (crew.go)
// starts workers before the checks need them; a role says how to start a worker. turns.go decides which check begins next. ledger.go
// reports results in the order of the checks.
package verify
