package seqpacket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at a path.
type Listener struct {
	path   string
	config ListenConfig
	lock   *FD // nil if another program made the socket, so the socket file belongs to that program
	file   *os.File
	raw    syscall.RawConn
	once   sync.Once
	closed chan struct{}
	err    error

	after func(time.Duration) <-chan time.Time // time.After, or a test's replacement
}

// newListener makes a Listener that owns `fd` and `lock`. If newListener fails, it closes `fd`, but not `lock`.
func newListener(fd int, path string, lock *FD, config ListenConfig) (*Listener, error) {
	file := os.NewFile(uintptr(fd), path)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Listener{path: path, config: config, lock: lock, file: file, raw: raw,
		closed: make(chan struct{}), after: time.After}, nil
}

// Path returns the path at which the listener listens.
func (l *Listener) Path() string { return l.path }

// Accept waits for the next connection. After Close, Accept fails with an error that wraps os.ErrClosed.
//
// While this process or the machine has no free descriptors or no memory, the listener pauses accepting. The listener tries again after 5
// ms. Each further pause is twice as long, up to a second. During a pause, clients wait in the listener's queue.
func (l *Listener) Accept() (*Conn, error) {
	const first, last = 5 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, last) {
		fd, err := l.accept()
		if err == nil {
			return l.conn(fd)
		}
		if !exhausted(err) {
			return nil, err
		}
		if l.config.OnPause != nil {
			l.config.OnPause(err)
		}
		select {
		case <-l.closed:
		case <-l.after(pause):
		}
	}
}

// accept waits for one connection and returns its socket.
func (l *Listener) accept() (fd int, err error) {
	e := l.raw.Read(func(listener uintptr) (done bool) {
		for {
			fd, _, err = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			switch err {
			case unix.EINTR, unix.ECONNABORTED:
			default:
				return err != unix.EAGAIN
			}
		}
	})
	select {
	case <-l.closed:
		if e == nil && err == nil {
			unix.Close(fd)
		}
		return -1, fmt.Errorf("accept: %w", os.ErrClosed)
	default:
	}
	if e != nil {
		return -1, e
	}
	if err != nil {
		return -1, full("accept4", err)
	}
	return fd, nil
}

// exhausted reports whether the error means that accepting may succeed later with the same listener.
func exhausted(err error) bool {
	return errors.Is(err, ErrFDTableFull) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

func (l *Listener) conn(fd int) (*Conn, error) {
	c, err := newConn(fd)
	if err != nil {
		return nil, err
	}
	if err := c.RefuseFDs(); err != nil && !errors.Is(err, ErrNotSupported) {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the listener and releases the lock. It also removes the socket file, unless another program made the socket. Accepted
// connections stay open. A second Close does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		// While this listener holds the lock, the file at the path belongs to this listener. So remove the file before the lock is released.
		var err error
		if l.lock != nil {
			err = os.Remove(l.path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		l.err = errors.Join(err, l.file.Close(), l.lock.Close())
	})
	return l.err
}
