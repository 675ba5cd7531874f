package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// RefuseFDs makes the kernel refuse descriptors that the peer sends (SO_PASSRIGHTS, Linux 6.16): the peer's Send fails
// with ErrFDsRefused and nothing arrives here. On an older kernel it fails with ErrNotSupported; the receiver then has to
// treat them as a protocol error and close them. A Listener does it for each connection that it accepts, where it can.
func (c *Conn) RefuseFDs() error { return c.do(refuseFDs) }

func refuseFDs(fd int) error {
	const call = "setsockopt SO_PASSRIGHTS"
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	if err == unix.ENOPROTOOPT {
		return failed(ErrNotSupported, call, err)
	}
	return os.NewSyscallError(call, err)
}
