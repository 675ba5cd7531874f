package seqpacket

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls in this file never block, so they are raw calls: they do not inform Go's scheduler. In an idle program,
// informing the scheduler would wake the thread that watches for long calls. Waking this thread costs more than sending a small packet.

// sendmsg sends one packet. The returned number is 0 if sendmsg succeeds.
func sendmsg(fd int, data, control []byte) unix.Errno {
	iov := unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	msg := unix.Msghdr{Iov: &iov}
	msg.SetIovlen(1)
	if len(control) > 0 {
		msg.Control = unsafe.SliceData(control)
		msg.SetControllen(len(control))
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return errno
}

// epollModify changes the events of a file in an epoll. It fails only if one of them is closed.
func epollModify(epoll, fd int, event *unix.EpollEvent) {
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_MOD, uintptr(fd), uintptr(unsafe.Pointer(event)), 0, 0)
}

// recvmsg receives one packet. errno is 0 if recvmsg succeeds.
func recvmsg(fd int, data, control []byte) (n, controlLen, flags int, errno unix.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	msg := unix.Msghdr{Iov: &iov, Control: unsafe.SliceData(control)}
	msg.SetIovlen(1)
	msg.SetControllen(len(control))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	return int(r), int(msg.Controllen), int(msg.Flags), errno
}
