// Package seqpacket is an AF_UNIX connection of type SOCK_SEQPACKET that carries file descriptors: one message is one
// packet, and the descriptors arrive with the message that they belong to. It knows nothing of what the packets mean.
//
// Waiting is left to Go's poller, so a blocked Conn costs no thread. Every error of the kernel is an *os.SyscallError
// somewhere in the chain, beside one of this package's sentinels where the caller has to decide something.
//
// Descriptors that arrive belong to an [FD], which closes them unless somebody takes them. [TraceFDs] finds those that
// nobody closed.
package seqpacket
