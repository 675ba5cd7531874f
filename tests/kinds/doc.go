// Package kinds tests every kind of memory against a built poolsvc in another process, also with exports that the test has
// changed. Without a driver it runs on the simulated one, if that is built. Kinds that the machine lacks are
// skipped.
package kinds
