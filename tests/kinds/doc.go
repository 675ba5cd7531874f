// Package kinds tests every kind of memory with a built poolsvc in another process. Some tests import exports that the
// test has changed. Without a real driver, the tests use the simulated driver, if it is built. The tests skip the kinds
// that the machine does not have.
package kinds
