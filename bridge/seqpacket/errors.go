package seqpacket

import (
	"errors"
	"fmt"
	"os"
)

// These are the errors that callers test for with errors.Is. If an error explains an error of the kernel, the returned error wraps both.
var (
	// ErrPeerClosed: the peer has closed its end before it read all data that was sent to it (EPIPE, ECONNRESET). If the peer read all data
	// before it closed its end, Recv returns io.EOF instead.
	ErrPeerClosed = errors.New("the peer closed the connection")
	// ErrWouldBlock: the socket's buffer is full and TrySend does not wait.
	ErrWouldBlock = errors.New("the socket's buffer is full")
	// ErrDataTruncated: a packet was longer than the buffer. Recv has closed the packet's descriptors.
	ErrDataTruncated = errors.New("the packet is longer than the buffer")
	// ErrControlTruncated: file descriptors of a packet were lost. Either the packet had more than MaxFDs descriptors, or there was no free
	// descriptor; in the second case the error also wraps ErrFDTableFull. Recv has closed the descriptors that arrived.
	ErrControlTruncated = errors.New("file descriptors of the packet were lost")
	// ErrSurplusFDs: a packet carried more than MaxFDs descriptors, and the kernel delivered them. Recv has closed all these descriptors.
	ErrSurplusFDs = errors.New("the packet carries too many file descriptors")
	// ErrEmptyPacket: a packet has no data. Empty packets are not allowed, because recvmsg returns the same result for an empty packet and for
	// the end of the connection.
	ErrEmptyPacket = errors.New("a packet without data")
	// ErrTooManyFDs: the caller passed more than MaxFDs descriptors to Send.
	ErrTooManyFDs = errors.New("too many file descriptors for one packet")
	// ErrTooLong: the packet is longer than the socket's buffer (EMSGSIZE).
	ErrTooLong = errors.New("the packet is too long for the socket")
	// ErrFDsInFlight: processes of this user have sent too many descriptors that nobody has received yet (ETOOMANYREFS).
	ErrFDsInFlight = errors.New("too many file descriptors in flight")
	// ErrFDsRefused: the peer does not accept file descriptors (EPERM, SO_PASSRIGHTS).
	ErrFDsRefused = errors.New("the peer refuses file descriptors")
	// ErrFDTableFull: this process or the machine has no free descriptor (EMFILE, ENFILE).
	ErrFDTableFull = errors.New("no file descriptor is free: raise the limit RLIMIT_NOFILE (LimitNOFILE= in a unit of systemd, ulimit -n)")

	// ErrInUse: a live service listens at the path.
	ErrInUse = errors.New("a live service uses the socket; stop that one (`poolsvc status` names its guard, if it has one), or choose another path; one that a program started ends 2 seconds after its last client")
	// ErrSocketLost: the file of a socket is not at its path any more, so nobody can connect.
	ErrSocketLost = errors.New("the socket's file is lost")
	// ErrNotSocket: the file at the path is not a socket.
	ErrNotSocket = errors.New("not a socket")
	// ErrNotListening: the file that ListenFile got is not a socket on which a service can listen.
	ErrNotListening = errors.New("expected a Unix socket of type SOCK_SEQPACKET that listens at a path (ListenSequentialPacket=/PATH in a socket unit)")
	// ErrUnsafeDir: other users could replace the socket, because they may write to its directory.
	ErrUnsafeDir = errors.New("the directory is open to others")
	// ErrPathTooLong: the path of a socket may have at most 107 bytes.
	ErrPathTooLong = errors.New("the socket's path is too long")

	// ErrNotSupported: the kernel does not have the feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrPeerGone: the peer's process has ended.
	ErrPeerGone = errors.New("the peer's process has ended")
)

// failed wraps err, an error of the kernel, together with why, the Err variable that explains err.
func failed(why error, call string, err error) error {
	return fmt.Errorf("%w: %w", why, os.NewSyscallError(call, err))
}
