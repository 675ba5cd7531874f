// Package driverfacts tests what poolbridge relies on in the CUDA driver, one test
// for each fact. The facts were measured. The tests check them again, on the
// driver of a GPU or on the simulated one, in the same way.
//
// Every fact about several processes is shown with separate processes: the
// test binary, started again as a worker that does what the test tells it. The
// test's own process has no CUDA context.
package driverfacts
