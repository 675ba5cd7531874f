// Package verify proves that memory can be shared on this machine. It runs a service. Workers in other processes check what Go wrote, and
// write what Go checks. The package reports each check by name.
package verify
