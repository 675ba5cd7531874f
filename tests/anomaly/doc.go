// Package anomaly fails driver calls one at a time. For each operation of the service, in the service's process and in a
// client's, on each kind of memory that comes from CUDA, it fails the first driver call of the operation, then the second,
// and so on, each with several results, until the operation makes no further call. After each failure:
//
//   - the client got an error of the right sort, or none;
//   - the accounts are exact, and agree with what the driver says is allocated;
//   - a session with memory of another pool on another GPU, and one with memory of the host, can transfer a buffer;
//   - the operation succeeds when it is tried again;
//   - once the client is closed and the service is shut down, no driver object, descriptor or goroutine is left in either
//     process, and the simulation's detector saw no misuse.
//
// Memory that could not be freed is freed the next time, at the latest with its pool, where a free that fails is tried
// twice: one failure loses nothing. One report of the detector is expected: a service that is shut down frees memory that
// clients still map.
//
// A driver that is shutting down fails every call from then on: memory that it does not free stays with it, is logged, and
// leaves the accounts with its pool.
//
// An error that sticks to a context, and a GPU that falls off the bus, end that GPU for the process that met them: nothing
// on it can be used or freed before the process ends. Then every call on that GPU must return an error,
// leases, names and sessions must still end, pools on it can be destroyed and the service can be shut down, and sessions
// with memory of other GPUs and of the host must not notice.
//
// It needs the simulated driver, which fails calls on demand.
package anomaly
