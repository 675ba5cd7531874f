package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// PeerPIDFD returns a pidfd of the peer's process, close-on-exec. On a kernel without SO_PEERPIDFD (before Linux 6.5) PeerPIDFD opens the
// pidfd by the peer's PID. This PID belongs to the peer only while the peer lives, so call PeerPIDFD right after accept.
//
// PeerPIDFD fails with ErrPeerGone if the process has ended and its parent has called wait for it, and with ErrNotSupported before Linux
// 5.3.
func (c *Conn) PeerPIDFD() (*FD, error) {
	var pidfd *FD
	err := c.do(func(fd int) (err error) {
		pidfd, err = peerPIDFD(fd)
		return err
	})
	return pidfd, err
}

func peerPIDFD(fd int) (*FD, error) {
	const call = "getsockopt SO_PEERPIDFD"
	raw, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch err {
	case nil:
		return NewFD(raw), nil
	case unix.ESRCH, unix.EINVAL, unix.ENODATA: // which of these errors comes depends on the kernel's version
		return nil, failed(ErrPeerGone, call, err)
	case unix.ENOPROTOOPT:
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return nil, os.NewSyscallError("getsockopt SO_PEERCRED", err)
		}
		return openPIDFD(int(cred.Pid))
	}
	return nil, full(call, err)
}

func openPIDFD(pid int) (*FD, error) {
	const call = "pidfd_open"
	raw, err := unix.PidfdOpen(pid, 0)
	switch err {
	case nil:
		return NewFD(raw), nil
	case unix.ESRCH, unix.EINVAL: // EINVAL: pid 0, a process outside of this PID namespace
		return nil, failed(ErrPeerGone, call, err)
	case unix.ENOSYS:
		return nil, failed(ErrNotSupported, call, err)
	}
	return nil, full(call, err)
}
