package seqpacket

import (
	"errors"
	"fmt"
	"os"
)

// Errors that callers decide on. They stand in the chain beside the *os.SyscallError that they explain.
var (
	// ErrPeerClosed: the peer has closed its end, and data that one side sent was never read (EPIPE, ECONNRESET).
	// The orderly end is io.EOF.
	ErrPeerClosed = errors.New("the peer closed the connection")
	// ErrWouldBlock: the socket's buffer is full and TrySend does not wait.
	ErrWouldBlock = errors.New("the socket's buffer is full")
	// ErrDataTruncated: a packet was longer than the buffer. Its file descriptors were closed.
	ErrDataTruncated = errors.New("the packet is longer than the buffer")
	// ErrControlTruncated: file descriptors of a packet were lost, because there were more than MaxFDs or because this
	// process has no free descriptors (EMFILE). Those that arrived were closed.
	ErrControlTruncated = errors.New("file descriptors of the packet were lost")
	// ErrSurplusFDs: a packet carried more than MaxFDs descriptors and the kernel delivered them. All were closed.
	ErrSurplusFDs = errors.New("the packet carries too many file descriptors")
	// ErrEmptyPacket: a packet without data, which cannot be told from the connection's end.
	ErrEmptyPacket = errors.New("a packet without data")
	// ErrTooManyFDs: Send was given more than MaxFDs descriptors.
	ErrTooManyFDs = errors.New("too many file descriptors for one packet")
	// ErrTooLong: the packet is longer than the socket's buffer can ever take (EMSGSIZE).
	ErrTooLong = errors.New("the packet is too long for the socket")
	// ErrFDsInFlight: this user has too many descriptors sent and not yet received (ETOOMANYREFS).
	ErrFDsInFlight = errors.New("too many file descriptors in flight")
	// ErrFDsRefused: the peer does not take file descriptors (EPERM, SO_PASSRIGHTS).
	ErrFDsRefused = errors.New("the peer refuses file descriptors")
	// ErrFDTableFull: this process or machine has no free descriptor (EMFILE, ENFILE).
	ErrFDTableFull = errors.New("the table of file descriptors is full; raise the limit (LimitNOFILE= in a unit of systemd, ulimit -n)")

	// ErrInUse: a live service listens at the path.
	ErrInUse = errors.New("a live service uses the socket; stop that one, or choose another path")
	// ErrNotSocket: something that is no socket stands at the path.
	ErrNotSocket = errors.New("not a socket")
	// ErrUnsafeDir: users other than this one could replace the socket.
	ErrUnsafeDir = errors.New("the directory is open to others")
	// ErrPathTooLong: the kernel takes socket paths up to 107 bytes.
	ErrPathTooLong = errors.New("the socket's path is too long")

	// ErrNotSupported: the kernel lacks the feature.
	ErrNotSupported = errors.New("not supported by this kernel")
	// ErrPeerGone: the peer's process has ended.
	ErrPeerGone = errors.New("the peer's process has ended")
)

// failed is an error of the kernel with the sentinel that explains it.
func failed(why error, call string, err error) error {
	return fmt.Errorf("%w: %w", why, os.NewSyscallError(call, err))
}
