// Package anomaly fails driver calls one at a time. For each operation of the service, in the service's process and in a
// client's, on each kind of memory that comes from CUDA, it fails the first driver call of the operation, then the second,
// and so on, each with several results, until the operation comes through with no call left to fail. After each failure:
//
//   - the client got an error of the right sort, or none;
//   - the accounts are exact, and agree with what the driver says is allocated;
//   - a session with memory of another pool on another GPU, and one with memory of the host, hand a buffer over;
//   - the operation succeeds when it is tried again;
//   - once the client is closed and the service is shut down, no driver object, descriptor or goroutine is left in either
//     process, and the simulation's detector saw no misuse.
//
// What could not be given back is given back the next time, at the latest when its pool goes, where what fails is tried
// twice: one failure loses nothing. One thing is as it is meant to be: a service that is shut down gives memory back that
// clients still map.
//
// A driver that is shutting down fails every call from then on: what it does not take back stays with it, is logged, and
// goes from the accounts with its pool.
//
// An error that sticks to a context, and a GPU that falls off the bus, end that GPU for the process that met them: nothing
// on it can be used or given back before the process ends. To go on means: every call on that GPU answers with an error,
// leases and names and sessions end as ever, pools on it can be destroyed and the service can be shut down, and sessions
// with memory of other GPUs and of the host do not notice.
//
// It needs the simulated driver, which fails calls on demand.
package anomaly
