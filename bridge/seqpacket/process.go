package seqpacket

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Process stands for a process. A program can wait for the end of the process without being its parent. A process may close its connection
// and continue to run. So a program can use a Process even after the connection to the process has ended.
type Process struct {
	id    uint64
	gone  chan struct{}
	file  *os.File // a pidfd in the poller; nil if the process had ended before
	watch sync.Once
	done  chan struct{} // closed when no goroutine watches the process or will watch it
	once  sync.Once
	err   error
}

// PeerProcess returns the peer's process. The caller closes the Process. If the process has ended already, PeerProcess returns no error,
// and Gone returns a closed channel. Other errors are those of PeerPIDFD.
func (c *Conn) PeerProcess() (*Process, error) {
	pidfd, err := c.PeerPIDFD()
	switch {
	case errors.Is(err, ErrPeerGone):
		p := &Process{gone: make(chan struct{}), done: make(chan struct{})}
		close(p.gone)
		return p, nil
	case err != nil:
		return nil, err
	}
	p, err := NewProcess(pidfd)
	if err == nil && p.id == 0 {
		var peer Peer
		if peer, err = c.Peer(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.id = uint64(peer.PID)
	}
	return p, err
}

// NewProcess makes a Process that owns the pidfd. If NewProcess fails, it closes the pidfd.
func NewProcess(pidfd *FD) (*Process, error) {
	if err := unix.SetNonblock(pidfd.Raw(), true); err != nil { // os.NewFile adds only a non-blocking descriptor to the poller
		pidfd.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	id, err := identity(pidfd.Raw())
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	return &Process{id: id, gone: make(chan struct{}), file: pidfd.File("pidfd"), done: make(chan struct{})}, nil
}

// identity returns the inode number of a pidfd if the kernel gives each process its own inode number, or else 0.
func identity(pidfd int) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(pidfd, &fs); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.PID_FS_MAGIC {
		return 0, nil
	}
	var st unix.Stat_t
	err := unix.Fstat(pidfd, &st)
	return st.Ino, os.NewSyscallError("fstat", err)
}

// ID returns a number that no other process has at the same time. ID returns 0 if the peer had ended before the call of PeerProcess. Before
// Linux 6.9, the number is the peer's PID, or 0 if the peer is outside of this process's PID namespace, or for a Process of NewProcess.
func (p *Process) ID() uint64 { return p.id }

// ended reports whether the process of a pidfd has ended.
func ended(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// Gone returns a channel that is closed when the process has ended and the kernel has released the memory, mappings and descriptors of the
// process. The first call of Gone or Watch starts watching the process. After Close the channel may stay open for ever.
func (p *Process) Gone() <-chan struct{} {
	p.Watch(func() {})
	return p.gone
}

// Watch starts watching the process, and calls atEnd when the process has ended: in another goroutine, or before Watch returns if the process
// had ended already. If Gone or Watch was called before, Watch does nothing, and never calls atEnd. After Close, atEnd may never be called.
// atEnd must not call Close, Gone or Watch of p, which could wait for atEnd.
func (p *Process) Watch(atEnd func()) {
	p.watch.Do(func() {
		if p.file == nil {
			close(p.done)
			atEnd()
			return
		}
		go func() {
			defer close(p.done)
			if raw, err := p.file.SyscallConn(); err == nil && raw.Read(ended) == nil {
				close(p.gone)
				atEnd()
			}
		}()
	})
}

// Close stops watching the process, and returns when the watching goroutine has ended. A second Close does nothing.
func (p *Process) Close() error {
	p.once.Do(func() {
		if p.file != nil {
			p.err = p.file.Close()
		}
		p.watch.Do(func() { close(p.done) })
		<-p.done
	})
	return p.err
}
