// Package verify proves that memory can be shared on this machine: it runs a service, has workers in other processes
// check what Go wrote and write what Go checks, and reports each check by name.
package verify
