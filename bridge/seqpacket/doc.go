// Package seqpacket is an AF_UNIX connection of type SOCK_SEQPACKET that carries file descriptors. One message is one packet, and its
// descriptors arrive together with it. The package does not know what the packets mean.
//
// Go's poller does the waiting, so a blocked Conn uses no thread. Every error of the kernel is an *os.SyscallError somewhere in the chain, next
// to a sentinel of this package where the caller has to decide something.
//
// Each received descriptor belongs to an [FD] until the receiver closes or takes it. [TraceFDs] finds descriptors that nobody closed.
package seqpacket
