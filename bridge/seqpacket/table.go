package seqpacket

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Reserve makes the table of descriptors of this process large enough for n descriptors. If the process's limit is lower than n, Reserve
// makes the table large enough for the limit. `room` is the smaller of n and the limit. If the table had to grow later, the kernel would
// make every thread that needs a descriptor wait. Go would then start extra threads and never end them.
func Reserve(n int) (room int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	room = int(min(uint64(n), limit.Cur))
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("open", err)
	}
	fd, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, room-1)
	if err == nil {
		err = unix.Close(fd)
	} else if errors.Is(err, unix.EMFILE) { // this descriptor and all later descriptors are in use
		err = nil
	}
	return room, errors.Join(os.NewSyscallError("fcntl(F_DUPFD)", err), unix.Close(null))
}
