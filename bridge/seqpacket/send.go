package seqpacket

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Send sends one packet with the given descriptors. The caller keeps the descriptors. While the socket's buffer is full, Send waits until
// the write deadline. Send sends the whole packet or nothing.
//
// The errors of Send are ErrEmptyPacket, ErrTooManyFDs, ErrTooLong, ErrFDsInFlight, ErrFDsRefused, ErrPeerClosed, os.ErrClosed and
// os.ErrDeadlineExceeded.
func (c *Conn) Send(data []byte, fds []int) error { return c.send(data, fds, true) }

// TrySend is like Send, but does not wait: it fails with ErrWouldBlock if the socket's buffer is full.
func (c *Conn) TrySend(data []byte, fds []int) error { return c.send(data, fds, false) }

// Unread returns how many bytes of the socket's buffer are used by packets that the peer has not received yet. A packet uses a few hundred
// bytes more than its length.
func (c *Conn) Unread() (n int, err error) {
	err = c.do(func(fd int) error {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return os.NewSyscallError("ioctl SIOCOUTQ", err)
	})
	return n, err
}

func (c *Conn) send(data []byte, fds []int, wait bool) error {
	switch {
	case len(data) == 0:
		// To the peer, an empty packet looks like the end of the connection.
		return ErrEmptyPacket
	case len(fds) > MaxFDs:
		return ErrTooManyFDs
	}
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	d := dispatches.Get().(*dispatch)
	d.data, d.control, d.wait = data, control, wait
	e := c.raw.Write(d.attempt)
	errno := d.errno
	d.data, d.control = nil, nil
	dispatches.Put(d)
	if e != nil {
		return c.usable(e)
	}
	return c.sendError(errno)
}

// dispatch has the arguments and results of one call of sendmsg. send uses dispatches again and again, so that sending allocates no memory.
type dispatch struct {
	data, control []byte
	wait          bool
	attempt       func(fd uintptr) (done bool) // send
	errno         unix.Errno
}

var dispatches = sync.Pool{New: func() any {
	d := new(dispatch)
	d.attempt = d.send
	return d
}}

// send tries to send one packet.
func (d *dispatch) send(fd uintptr) (done bool) {
	for {
		d.errno = sendmsg(int(fd), d.data, d.control)
		if d.errno != unix.EINTR {
			return d.errno != unix.EAGAIN || !d.wait
		}
	}
}

// sendErrors maps errors of sendmsg to this package's Err variables.
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
		c.reset.Store(true) // the kernel reports the reset only once, to the first caller
	}
	return failed(why, "sendmsg", errno)
}
