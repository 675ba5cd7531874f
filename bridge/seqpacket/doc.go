// Package seqpacket makes AF_UNIX connections of type SOCK_SEQPACKET, and sends and receives packets and file descriptors on them. One
// message is one packet. The descriptors of a message arrive together with the packet. The package does not know what the packets mean.
//
// Go's poller does the waiting, so a goroutine that waits for a packet blocks no thread. An error of the kernel wraps an *os.SyscallError.
// If a caller must distinguish the error, the error also wraps one of this package's Err variables.
//
// Each received descriptor belongs to an [FD] until the receiver closes or takes it.
package seqpacket
