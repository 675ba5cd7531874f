package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// RefuseFDs makes the kernel refuse descriptors that the peer sends (SO_PASSRIGHTS, Linux 6.16). The peer's Send then fails with
// ErrFDsRefused, and no packet arrives at this end. On an older kernel RefuseFDs fails with ErrNotSupported: the receiver must then treat
// received descriptors as a protocol error and close them. A Listener calls RefuseFDs for each connection that it accepts.
func (c *Conn) RefuseFDs() error { return c.do(refuseFDs) }

func refuseFDs(fd int) error {
	const call = "setsockopt SO_PASSRIGHTS"
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	if err == unix.ENOPROTOOPT {
		return failed(ErrNotSupported, call, err)
	}
	return os.NewSyscallError(call, err)
}
