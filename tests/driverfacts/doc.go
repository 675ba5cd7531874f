// Package driverfacts is what poolbridge relies on in the CUDA driver, one test
// for each fact. The facts were measured; the tests measure them again, on the
// driver of a GPU or on the simulated one, and know no difference between them.
//
// Every fact about several processes is shown with processes of its own: the
// test binary, started again as a worker that does what the test tells it. The
// test's own process has no CUDA context.
package driverfacts
