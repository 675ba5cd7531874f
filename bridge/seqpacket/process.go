package seqpacket

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Process is a process that can be waited for without being its parent. It does not end with the connection that it was
// asked from: a process may close its connection and live on.
type Process struct {
	id    uint64
	gone  chan struct{}
	file  *os.File // a pidfd in the poller; nil if the process was gone from the start
	watch sync.Once
	done  chan struct{} // closed when nobody watches, and nobody will
	once  sync.Once
	err   error
}

// PeerProcess returns the peer's process. Close it when it does not matter any more. One that has ended already is no
// error: its Gone is closed. Its errors are those of PeerPIDFD otherwise.
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

// NewProcess makes the process of a pidfd, which it takes. On error the pidfd is closed.
func NewProcess(pidfd *FD) (*Process, error) {
	if err := unix.SetNonblock(pidfd.Raw(), true); err != nil { // or os.NewFile leaves it out of the poller
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

// identity is the number of a pidfd's inode, where the kernel gives each process one of its own; 0 otherwise.
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

// ID tells processes apart that live at the same time. It is 0 where the kernel does not tell: for a peer that had ended from
// the start, and before Linux 6.9 for one that this process's PID namespace does not see.
func (p *Process) ID() uint64 { return p.id }

// ended says whether the process of a pidfd has ended.
func ended(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// Gone returns a channel that is closed when the process has ended: its memory, its mappings and its descriptors are no
// longer its own. After Close it may never be closed. The process is watched from the first call on.
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

// Close stops watching and returns once nothing of it is left. Closing again does nothing.
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
