// Package ledger has what a service knows of its pools, blocks, buffers, leases, names, channels, timelines and sessions: plain data by id,
// the rules for changing it, the limits, and what counts for whom. It has no locks, no goroutines, no system calls and no descriptors, and it
// knows nothing of the service. The service keeps what is not plain beside the ledger, and finds it by id: memory, files, and those who
// wait.
//
// [Ledger.Check] says what is wrong with a ledger. [Ledger.Encode] and [Decode] write it to a file and read it back.
package ledger
