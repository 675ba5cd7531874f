// Package kinds tests every kind of memory against a built poolsvc in another process, with what it exports tampered with
// on the way. Where there is no driver it runs on the simulated one, if that is built; kinds that the machine lacks are
// skipped.
package kinds
