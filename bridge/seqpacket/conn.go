package seqpacket

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is one end of a connection. Several goroutines may call its methods at the same time.
type Conn struct {
	file   *os.File // the socket, non-blocking and registered with Go's poller
	raw    syscall.RawConn
	closed atomic.Bool
	reset  atomic.Bool // the kernel reported ECONNRESET; Recv can still return packets that the peer sent before

	watch *watch // nil: there is none

	receiving sync.Mutex // guards the field `in`
	in        receipt
}

// newConn makes a Conn that owns the socket fd, which must be non-blocking. If newConn fails, it closes fd.
func newConn(fd int) (*Conn, error) {
	file := os.NewFile(uintptr(fd), "seqpacket")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("seqpacket: %w", err)
	}
	c := &Conn{file: file, raw: raw}
	c.in.attempt, c.in.attemptInto = c.receive, c.receiveInto
	return c, nil
}

// Pair returns the two ends of a new connection.
func Pair() (*Conn, *Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, full("socketpair", err)
	}
	a, err := newConn(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	b, err := newConn(fds[1])
	if err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// Close closes the connection. Calls of Send or Recv that wait fail with os.ErrClosed. A second Close does nothing. The
// peer can still read the packets that were sent before.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.file.Close()
	if c.watch != nil {
		_ = c.watch.file.Close()
	}
	return err
}

// CloseWrite ends sending. The peer's Recv still returns the packets that were sent before, and then io.EOF.
func (c *Conn) CloseWrite() error {
	return c.do(func(fd int) error { return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_WR)) })
}

// CloseRead ends receiving. Recv still returns the packets that the peer sent before, and then io.EOF. The peer's Send fails with
// ErrPeerClosed from now on.
func (c *Conn) CloseRead() error {
	return c.do(func(fd int) error { return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_RD)) })
}

// SetDeadline sets the time after which Send and Recv fail with os.ErrDeadlineExceeded. The new deadline also applies to calls that already
// wait. The zero time means no deadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.usable(c.file.SetDeadline(t)) }

// SetReadDeadline is like SetDeadline, but only for Recv.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.usable(c.file.SetReadDeadline(t)) }

// SetWriteDeadline is like SetDeadline, but only for Send.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.usable(c.file.SetWriteDeadline(t)) }

// SyscallConn gives access to the socket, for options that this package does not support.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// do calls f with the socket's descriptor. It does not wait.
func (c *Conn) do(f func(fd int) error) error {
	var err error
	if e := c.raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return c.usable(e)
	}
	return err
}

// usable turns an error of the poller after Close into an error that wraps os.ErrClosed.
func (c *Conn) usable(err error) error {
	if err != nil && c.closed.Load() {
		return fmt.Errorf("seqpacket: %w", os.ErrClosed)
	}
	return err
}

// full returns the error of a system call that failed to make a descriptor.
func full(call string, err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return failed(ErrFDTableFull, call, err)
	}
	return os.NewSyscallError(call, err)
}
