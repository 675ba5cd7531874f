// Package verify proves that memory can be shared on this machine. It runs a service. Workers in other processes check what Go wrote, and
// write what Go checks. The package reports each check by name.
//
// The files with names of scenarios hold the checks: families (check.go) lists them. A check gets a scene: its own names, pools and workers. What all
// checks share is the stage (scene.go). The roster says which consumers there are, and the crew starts workers for them before they are
// needed (crew.go: a role is how to start one). turns.go decides which check begins next, and ledger.go reports results in the order of the checks.
package verify
