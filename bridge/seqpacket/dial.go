package seqpacket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to the service that listens at path. While the service's queue of connections is full, Dial tries again, until ctx ends.
// An error of connect(2) is wrapped as *os.SyscallError, so that errors.Is finds fs.ErrNotExist, unix.ECONNREFUSED (no process listens any
// more) and fs.ErrPermission. If ctx ends, the error wraps the cause of ctx.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := dialer{path: path}.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}

// dialer is an attempt to connect.
type dialer struct {
	path  string
	retry func() // for tests: dial calls retry each time that the service's queue is full
}

func (d dialer) dial(ctx context.Context) (*Conn, error) {
	addr, err := address(d.path)
	if err != nil {
		return nil, err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c, err := connect(addr)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return c, err
		}
		if d.retry != nil {
			d.retry()
		}
		// If connect(2) of an AF_UNIX socket would block, poll(2) cannot wait until the service's queue has room. So try again after a pause.
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func connect(addr *unix.SockaddrUnix) (*Conn, error) {
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, addr); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return newConn(fd)
}

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, full("socket", err)
	}
	return fd, nil
}

// address turns a path into a socket address. A path that begins with @ is the name of a file in the current folder, and not an abstract
// address, because abstract addresses have no permissions.
func address(path string) (*unix.SockaddrUnix, error) {
	if strings.HasPrefix(path, "@") {
		path = "./" + path
	}
	if limit := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, more than %d", ErrPathTooLong, path, len(path), limit)
	}
	return &unix.SockaddrUnix{Name: path}, nil
}
