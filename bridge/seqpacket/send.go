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
		// The peer would take it for the end of the connection.
		return ErrEmptyPacket
	case len(fds) > MaxFDs:
		return ErrTooManyFDs
	}
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	var errno unix.Errno
	attempt := func(fd uintptr) (done bool) {
		for {
			errno = sendmsg(int(fd), data, control)
			if errno != unix.EINTR {
				return errno != unix.EAGAIN || !wait
			}
		}
	}
	if e := c.raw.Write(attempt); e != nil {
		return c.usable(e)
	}
	return c.sendError(errno)
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

func (c *Conn) sendError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	why, ok := sendErrors[errno]
	if !ok {
		return os.NewSyscallError("sendmsg", errno)
	}
	if errno == unix.ECONNRESET {
		c.reset.Store(true) // the kernel says so once, to whoever asks first
	}
	return failed(why, "sendmsg", errno)
}
