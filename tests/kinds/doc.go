// Package kinds tests every kind of memory against a built poolsvc in another process, with what it exports tampered with
// on the way. Kinds that this machine lacks are skipped; with the simulated driver in LD_LIBRARY_PATH it has all.
package kinds
