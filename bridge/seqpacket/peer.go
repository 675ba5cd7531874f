package seqpacket

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer describes the process at the other end of a connection. The kernel records these values for a client when the client calls connect,
// and for a service when the service calls listen. Use UID, GID and Groups to decide what the peer may do. Use PID only for display: if the
// peer has ended, another process may have its PID now.
type Peer struct {
	PID    int
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups
}

// Peer returns the peer's credentials. The credentials do not change during the connection, and Peer can read them even after the peer's
// process has ended.
func (c *Conn) Peer() (Peer, error) {
	var p Peer
	err := c.do(func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return os.NewSyscallError("getsockopt SO_PEERCRED", err)
		}
		groups, err := peerGroups(fd)
		p = Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Groups: groups}
		return err
	})
	return p, err
}

// peerGroups reads SO_PEERGROUPS. Package unix has no function for this option.
func peerGroups(fd int) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[: size/4 : size/4], nil
		case unix.ERANGE: // the kernel has set size to the size that the groups need
			groups = make([]uint32, size/4)
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
	}
}
