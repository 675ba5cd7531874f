package seqpacket

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watch is an epoll with the socket of a connection as its only file. Go's poller watches the epoll, so a goroutine can wait for packets
// which it leaves to others, and is not woken while the watch is off.
type watch struct {
	file   *os.File
	raw    syscall.RawConn
	socket int                        // of the call of SetWatched that runs
	modify [len(events)]func(uintptr) // changes the epoll to these events; made once, because SetWatched runs twice in each request
	with   [len(events)]func(uintptr) // calls modify with the socket
}

// events are those for which a watch that is off or on waits. The end of the connection is always one.
var events = [2]unix.EpollEvent{{}, {Events: unix.EPOLLIN | unix.EPOLLRDHUP}}

const off, on = 0, 1

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
	for to := range events {
		w.modify[to] = func(epoll uintptr) { epollModify(int(epoll), w.socket, &events[to]) }
		w.with[to] = func(socket uintptr) {
			w.socket = int(socket)
			_ = w.raw.Control(w.modify[to])
		}
	}
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = c.do(func(socket int) error {
			return os.NewSyscallError("epoll_ctl", unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, socket, &events[on]))
		})
	}
	if err != nil {
		w.file.Close()
		return err
	}
	c.watch = w
	return nil
}

// SetWatched turns the watch on or off. If a packet waits when it is turned on, AwaitPacket returns. After Close it does nothing. One
// goroutine at a time may call it.
func (c *Conn) SetWatched(yes bool) {
	to := off
	if yes {
		to = on
	}
	_ = c.raw.Control(c.watch.with[to])
}

// AwaitPacket waits until the watch is on and a packet, or the end of the connection, can be received. Another goroutine may receive it first.
// After Close the error is os.ErrClosed.
func (c *Conn) AwaitPacket() error {
	var came [1]unix.EpollEvent
	return c.usable(c.watch.raw.Read(func(fd uintptr) (done bool) {
		for {
			n, err := unix.EpollWait(int(fd), came[:], 0)
			if err != unix.EINTR {
				return n > 0 || err != nil
			}
		}
	}))
}
