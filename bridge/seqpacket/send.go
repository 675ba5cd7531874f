package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// Send sends one packet with the given descriptors, which stay the caller's. While the socket's buffer is full it waits,
// until the write deadline; the packet is then either sent as a whole or not at all.
//
// Its errors are ErrEmptyPacket, ErrTooManyFDs, ErrTooLong, ErrFDsInFlight, ErrFDsRefused, ErrPeerClosed, os.ErrClosed and
// os.ErrDeadlineExceeded.
func (c *Conn) Send(data []byte, fds []int) error { return c.send(data, fds, true) }

// TrySend is Send without waiting: it fails with ErrWouldBlock if the socket's buffer is full.
func (c *Conn) TrySend(data []byte, fds []int) error { return c.send(data, fds, false) }

func (c *Conn) send(data []byte, fds []int, wait bool) error {
	switch {
	case len(data) == 0:
		// The peer would take it for the end of the connection. And unix.SendmsgN would add a byte of its own to carry
		// the descriptors.
		return ErrEmptyPacket
	case len(fds) > MaxFDs:
		return ErrTooManyFDs
	}
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	var err error
	attempt := func(fd uintptr) (done bool) {
		for {
			_, err = unix.SendmsgN(int(fd), data, control, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				return err != unix.EAGAIN || !wait
			}
		}
	}
	if e := c.raw.Write(attempt); e != nil {
		return c.usable(e)
	}
	return c.sendError(err)
}

func (c *Conn) sendError(err error) error {
	const call = "sendmsg"
	switch err {
	case nil:
		return nil
	case unix.EAGAIN:
		return failed(ErrWouldBlock, call, err)
	case unix.EPIPE, unix.ECONNRESET:
		c.reset.Store(true)
		return failed(ErrPeerClosed, call, err)
	case unix.EMSGSIZE:
		return failed(ErrTooLong, call, err)
	case unix.ETOOMANYREFS:
		return failed(ErrFDsInFlight, call, err)
	case unix.EPERM:
		return failed(ErrFDsRefused, call, err)
	}
	return os.NewSyscallError(call, err)
}
