package seqpacket

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Recv reads one packet into buf. It returns the packet's length and the packet's descriptors; fds is nil if the packet has no descriptors.
// The descriptors are close-on-exec, and the caller closes them. Recv waits for a packet until the read deadline.
//
// At the end of the connection, Recv returns io.EOF, or ErrPeerClosed if the peer closed its end before it had read all packets. In both
// cases Recv first returns the packets that the peer had sent. If a packet has arrived incomplete, or is not allowed, Recv returns
// ErrDataTruncated, ErrControlTruncated, ErrSurplusFDs or ErrEmptyPacket. Recv then closes the packet's descriptors, and the next Recv
// returns the next packet. After Close the error is os.ErrClosed.
func (c *Conn) Recv(buf []byte) (n int, fds *FDs, err error) {
	if len(buf) == 0 {
		return 0, nil, ErrDataTruncated
	}
	c.receiving.Lock()
	defer c.receiving.Unlock()
	c.in.data = buf
	err = c.raw.Read(c.in.attempt)
	c.in.data = nil
	return c.received(err)
}

// received returns the result of one call of recvmsg. err is the error of the poller. The caller holds c.receiving.
func (c *Conn) received(err error) (int, *FDs, error) {
	if err != nil {
		return 0, nil, c.usable(err)
	}
	if c.in.errno == unix.EAGAIN {
		return 0, nil, ErrWouldBlock
	}
	if c.in.errno != 0 {
		return 0, nil, os.NewSyscallError("recvmsg", c.in.errno)
	}
	return c.accept(c.in.n, c.in.control[:c.in.controlLen], c.in.flags)
}

// receipt has the arguments and results of one call of recvmsg. Each connection has one receipt, so that receiving allocates no memory.
type receipt struct {
	data    []byte
	control [controlSpace]byte
	attempt func(fd uintptr) (done bool) // Conn.receive

	buffers     *Buffers                     // buffers for attemptInto
	packet      *Packet                      // the packet that attemptInto has received
	attemptInto func(fd uintptr) (done bool) // Conn.receiveInto

	once bool // do not wait for a packet

	n, controlLen, flags int
	errno                unix.Errno
}

// receive tries to receive one packet. The caller holds c.receiving.
func (c *Conn) receive(fd uintptr) (done bool) {
	for {
		c.in.n, c.in.controlLen, c.in.flags, c.in.errno = recvmsg(int(fd), c.in.data, c.in.control[:])
		switch c.in.errno {
		case unix.EINTR:
		case unix.ECONNRESET:
			// The peer closed its end before it had read all packets that this side sent. The kernel reports ECONNRESET once, and only then delivers
			// the packets that the peer sent. So try again: the peer's last packet may say why the peer closed its end.
			c.reset.Store(true)
		default:
			return c.in.errno != unix.EAGAIN || c.in.once
		}
	}
}

// accept checks the packet that the kernel delivered. If the packet is not allowed, accept closes the descriptors.
func (c *Conn) accept(n int, control []byte, flags int) (int, *FDs, error) {
	fds := rights(control)
	var err error
	switch {
	case flags&unix.MSG_CTRUNC != 0 && fds.Len() < MaxFDs: // there was room for more
		err = fmt.Errorf("%w: %w", ErrControlTruncated, ErrFDTableFull)
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

// end returns why recvmsg delivered no data: ErrEmptyPacket, ErrPeerClosed or io.EOF. recvmsg returns the same for an empty packet and for the
// end of the connection, so end asks poll whether the peer has hung up. If so, an empty packet counts as the end, too.
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
