package seqpacket

import (
	"errors"
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

// sendErrors are the errors of sendmsg that callers decide on.
var sendErrors = map[unix.Errno]error{
	unix.EAGAIN:       ErrWouldBlock,
	unix.EPIPE:        ErrPeerClosed,
	unix.ECONNRESET:   ErrPeerClosed,
	unix.EMSGSIZE:     ErrTooLong,
	unix.ETOOMANYREFS: ErrFDsInFlight,
	unix.EPERM:        ErrFDsRefused,
}

func (c *Conn) sendError(err error) error {
	if err == nil {
		return nil
	}
	errno, _ := errors.AsType[unix.Errno](err)
	why, ok := sendErrors[errno]
	if !ok {
		return os.NewSyscallError("sendmsg", err)
	}
	if errno == unix.ECONNRESET {
		c.reset.Store(true) // the kernel says so once, to whoever asks first
	}
	return failed(why, "sendmsg", err)
}
