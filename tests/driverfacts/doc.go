// Package driverfacts tests the facts about the CUDA driver that poolbridge relies on, with one test for each fact. All
// facts were measured. The same tests check the driver of a GPU and the simulated driver.
//
// A test of a fact about several processes uses separate processes. It starts the test binary again as a worker, and
// sends the worker operations to do. The test's own process has no CUDA context.
package driverfacts
