// Package anomaly tests what happens if driver calls fail, one call at a time. The tests run each operation of the service
// on each kind of memory that comes from CUDA. In the first run, the first driver call of the operation fails, in the next
// run the second call, and so on, until the operation makes no further call. The calls fail in the service's process or in
// the client's process, with one of several error codes. After each failure, the tests check the following:
//
//   - The client got an error with an expected code, or no error.
//   - The accounting is exact, and agrees with the allocated memory that the driver reports.
//   - Two other sessions can still transfer buffers. One session has a pool on another GPU, the other has memory of the host.
//   - The operation succeeds when the test tries it again.
//   - After the client is closed and the service is shut down, no driver object, descriptor or goroutine is left in either
//     process, and the detector of the simulated driver has reported no misuse.
//
// If the service could not free memory, it tries again later, and at the latest when it destroys the pool. To destroy the
// pool, it tries twice, so a single failure loses no memory. The tests expect one report of the detector: a service that
// shuts down frees memory that clients still map.
//
// After a driver has begun to shut down, all its calls fail. The service logs the memory that the driver does not free. The
// memory leaves the accounting when its pool is destroyed.
//
// After an error that sticks to a context, or after a GPU has fallen off the bus, a process cannot use the GPU any more. It
// can free nothing on this GPU before it ends. Then every call on this GPU must return an error. Leases, names and sessions
// must still end, the service must still be able to destroy the pools on this GPU and to shut down, and sessions with
// memory of other GPUs or of the host must not notice the failure.
//
// The tests need the simulated driver, because it can fail calls on demand.
package anomaly
