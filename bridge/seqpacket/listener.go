package seqpacket

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at a path.
type Listener struct {
	config ListenConfig
	once   sync.Once
	closed chan struct{}
	err    error

	after func(time.Duration) <-chan time.Time // time.After, or a test's replacement
	every time.Duration                        // how often Accept checks that the socket's file is there

	mender  Mender // only Accept uses it
	pending []int  // accepted descriptors for the next calls of Accept, which alone uses them

	mu   sync.Mutex
	lock *FD // nil if another program made the socket, so the socket file belongs to that program
	at   SocketFile
	file *os.File
	raw  syscall.RawConn
}

// newListener makes a Listener that owns `fd` and `lock`. If newListener fails, it closes `fd`, but not `lock`.
func newListener(fd int, at SocketFile, lock *FD, config ListenConfig) (*Listener, error) {
	l := &Listener{at: at, config: config, lock: lock, closed: make(chan struct{}), after: time.After, every: MendEvery, mender: Mender{OnLost: config.OnLost}}
	return l, l.use(fd)
}

// use makes fd the socket on which the listener listens. The caller holds l.mu, or no other goroutine can access l yet.
func (l *Listener) use(fd int) error {
	file := os.NewFile(uintptr(fd), l.at.path)
	raw, err := file.SyscallConn()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if l.config.Made != nil {
		if err := l.config.Made(file); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	l.file, l.raw = file, raw
	return nil
}

// Path returns the path at which the listener listens.
func (l *Listener) Path() string { return l.at.path }

// Check returns nil if the socket's file is at its path, so that clients can connect.
//
// Errors: [ErrSocketLost].
func (l *Listener) Check() error {
	l.mu.Lock()
	at := l.at
	l.mu.Unlock()
	return at.Check()
}

// Accept waits for the next connection. After Close, Accept fails with an error that wraps os.ErrClosed. One goroutine at a time may call
// Accept.
//
// While this process or the machine has no free descriptors or no memory, the listener pauses accepting. The listener tries again after 5
// ms. Each further pause is twice as long, up to a second. During a pause, clients wait in the listener's queue.
//
// While it waits, Accept checks every second whether the socket's file is still at its path. If not, Accept makes the socket again: see
// [ListenConfig].OnLost.
func (l *Listener) Accept() (*Conn, error) {
	const first, last = 5 * time.Millisecond, time.Second
	for pause := first; ; {
		fd, err := l.accept()
		switch {
		case err == nil:
			return l.conn(fd)
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.look()
			continue
		case !exhausted(err):
			return nil, err
		}
		if l.config.OnPause != nil {
			l.config.OnPause(err)
		}
		select {
		case <-l.closed:
		case <-l.after(pause):
		}
		pause = min(2*pause, last)
	}
}

// look makes the socket again if its file is lost, and says so.
func (l *Listener) look() {
	locked := l.lock == nil || isAt(l.lock, l.Path()+".lock")
	l.mender.Mend(l.Check(), locked, l.restore)
}

// restore takes the lock again if the lock's file is lost, and makes the socket again if its file is lost.
func (l *Listener) restore() error {
	if l.lock == nil {
		return errors.New("another program made the socket, and has to make it again: restart the socket unit")
	}
	path := l.Path()
	if err := safeDir(filepath.Dir(path)); err != nil {
		return err
	}
	lock := l.lock
	if !isAt(lock, path+".lock") {
		var err error
		if lock, err = lockFile(path + ".lock"); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		if lock != l.lock {
			lock.Close()
		}
		return os.ErrClosed
	default:
	}
	if lock != l.lock {
		l.lock.Close()
		l.lock = lock
	}
	if l.at.Check() == nil {
		return nil
	}
	fd, at, err := claim(path, l.config.mode())
	if err != nil {
		return err
	}
	l.drain()
	was := l.file
	l.at = at
	return errors.Join(l.use(fd), was.Close())
}

// drain accepts the connections that wait in the queue of a socket that the listener gives up.
func (l *Listener) drain() {
	_ = l.raw.Control(func(listener uintptr) {
		for {
			fd, _, err := unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			l.pending = append(l.pending, fd)
		}
	})
}

// accept waits for one connection and returns its socket.
func (l *Listener) accept() (fd int, err error) {
	_ = l.file.SetReadDeadline(time.Now().Add(l.every)) // an error means that the file is closed, and then Read fails too
	e := l.raw.Read(func(listener uintptr) (done bool) {
		if len(l.pending) > 0 {
			fd, l.pending, err = l.pending[0], l.pending[1:], nil
			return true
		}
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
			l.pending = append(l.pending, fd)
		}
		for _, fd := range l.pending {
			unix.Close(fd)
		}
		l.pending = nil
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

// Close closes the listener and releases the lock. It also removes the socket file, unless another program made the socket, or another file
// is at its path. Accepted connections stay open. A second Close does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.closed)
		if l.lock != nil { // remove the file before the lock is released: afterwards, another service may make a socket there
			l.err = l.at.Remove()
		}
		l.err = errors.Join(l.err, l.file.Close(), l.lock.Close())
	})
	return l.err
}
