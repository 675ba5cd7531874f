package seqpacket

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Process is a process for whose end a program can wait without being its parent. A Process stays usable after its connection has ended: a
// process may close its connection and continue to run.
type Process struct {
	id    uint64
	gone  chan struct{}
	file  *os.File // a pidfd in the poller; nil if the process had ended before
	watch sync.Once
	done  chan struct{} // closed when no goroutine watches the process or will watch it
	once  sync.Once
	err   error
}

// PeerProcess returns the peer's process. The caller closes it. It is not an error if the process has ended already: Gone then returns a
// closed channel. Its other errors are those of PeerPIDFD.
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

// NewProcess makes the Process of a pidfd and takes the pidfd over. If it fails, the pidfd is closed.
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

// identity returns the number of a pidfd's inode if the kernel gives each process its own inode, or else 0.
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

// ID identifies the process among those that live at the same time. ID is 0 if the kernel gives no number: for a peer that had ended
// before, and before Linux 6.9 for a peer outside of this process's PID namespace.
func (p *Process) ID() uint64 { return p.id }

// ended reports whether the process of a pidfd has ended.
func ended(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// Gone returns a channel that is closed when the process has ended and its memory, mappings and descriptors are released. The first call
// starts watching the process. After Close the channel may never be closed.
func (p *Process) Gone() <-chan struct{} {
	p.watch.Do(func() {
		if p.file == nil {
			close(p.done)
			return
		}
		go func() {
			defer close(p.done)
			if raw, err := p.file.SyscallConn(); err == nil && raw.Read(ended) == nil {
				close(p.gone)
			}
		}()
	})
	return p.gone
}

// Close stops watching, and returns when the watching goroutine has ended. Closing again does nothing.
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
