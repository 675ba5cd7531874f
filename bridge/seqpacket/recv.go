package seqpacket

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Recv reads one packet into buf and returns its length and its descriptors, which are close-on-exec and the caller's to
// close; nil if there are none. It waits for a packet until the read deadline.
//
// At the end it returns io.EOF, or ErrPeerClosed if the peer closed without reading everything; packets that the peer
// had sent come first in either case. A packet that did not arrive whole yields ErrDataTruncated, ErrControlTruncated,
// ErrSurplusFDs or ErrEmptyPacket, with every descriptor closed, and the next Recv goes on behind it. After Close the
// error is os.ErrClosed.
func (c *Conn) Recv(buf []byte) (n int, fds *FDs, err error) {
	if len(buf) == 0 {
		return 0, nil, ErrDataTruncated
	}
	c.receiving.Lock()
	defer c.receiving.Unlock()
	var controlLen, flags int
	var errno unix.Errno
	attempt := func(fd uintptr) (done bool) {
		for {
			n, controlLen, flags, errno = recvmsg(int(fd), buf, c.control[:])
			switch errno {
			case unix.EINTR:
			case unix.ECONNRESET:
				// The peer closed with our packets unread. The kernel says so once and before the packets that the peer
				// sent, of which the last may tell why it closed.
				c.reset.Store(true)
			default:
				return errno != unix.EAGAIN
			}
		}
	}
	if e := c.raw.Read(attempt); e != nil {
		return 0, nil, c.usable(e)
	}
	if errno != 0 {
		return 0, nil, os.NewSyscallError("recvmsg", errno)
	}
	return c.accept(n, c.control[:controlLen], flags)
}

// accept judges what the kernel delivered.
func (c *Conn) accept(n int, control []byte, flags int) (int, *FDs, error) {
	fds := rights(control)
	var err error
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		err = ErrControlTruncated
	case fds.Len() > MaxFDs:
		err = ErrSurplusFDs
	case flags&unix.MSG_TRUNC != 0:
		err = ErrDataTruncated
	case n == 0:
		err = c.end()
	default:
		return n, fds, nil
	}
	fds.Close()
	return 0, nil, err
}

// end tells why the kernel delivered nothing: an empty packet and the end of the connection look the same, except that
// after the end the peer has hung up.
func (c *Conn) end() error {
	var events int16
	err := c.do(func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p, 0)
		events = p[0].Revents
		return err
	})
	switch {
	case c.reset.Load():
		return failed(ErrPeerClosed, "recvmsg", unix.ECONNRESET)
	case err == nil && events&(unix.POLLRDHUP|unix.POLLHUP) == 0:
		return ErrEmptyPacket
	}
	return io.EOF
}
