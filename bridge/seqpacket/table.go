package seqpacket

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Reserve makes room for n descriptors in the table of this process, as far as its limit allows. The kernel lets the table
// grow while all threads that want a descriptor wait, and a goroutine that waits there keeps a thread for ever.
func Reserve(n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	last := min(uint64(n), limit.Cur) - 1
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	fd, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, int(last))
	if err == nil {
		err = unix.Close(fd)
	} else if errors.Is(err, unix.EMFILE) { // that descriptor and all behind it are in use
		err = nil
	}
	return errors.Join(os.NewSyscallError("fcntl(F_DUPFD)", err), unix.Close(null))
}
