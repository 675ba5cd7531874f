package seqpacket

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watch is an epoll with the socket of a connection as its only file. Go's poller watches the epoll, so a goroutine can wait for packets
// which it leaves to others, and is not woken while the watch is off.
type watch struct {
	file *os.File
	raw  syscall.RawConn
}

// Watch makes AwaitPacket possible. The caller calls it before other goroutines have the connection.
func (c *Conn) Watch() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return full("epoll_create1", err)
	}
	if err = unix.SetNonblock(fd, true); err != nil { // so that Go's poller takes it
		unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	w := &watch{file: os.NewFile(uintptr(fd), "seqpacket watch")}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = c.do(func(socket int) error {
			return os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, socket, watched(true)))
		})
	}
	if err != nil {
		w.file.Close()
		return err
	}
	c.watch = w
	return nil
}

// watched returns the events for which a watch that is on waits. The end of the connection is always one.
func watched(on bool) *unix.EpollEvent {
	if on {
		return &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP}
	}
	return &unix.EpollEvent{}
}

// SetWatched turns the watch on or off. If a packet waits when it is turned on, AwaitPacket returns. After Close it does nothing.
func (c *Conn) SetWatched(on bool) {
	_ = c.do(func(socket int) error {
		return c.watch.raw.Control(func(fd uintptr) {
			epollModify(int(fd), socket, watched(on))
		})
	})
}

// AwaitPacket waits until the watch is on and a packet, or the end of the connection, can be received. Another goroutine may receive it first.
// After Close the error is os.ErrClosed.
func (c *Conn) AwaitPacket() error {
	var events [1]unix.EpollEvent
	return c.usable(c.watch.raw.Read(func(fd uintptr) (done bool) {
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if err != unix.EINTR {
				return n > 0 || err != nil
			}
		}
	}))
}
