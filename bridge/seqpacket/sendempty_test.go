package seqpacket

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendEmpty sends a packet without data but with a control message. Package unix would add a byte of data.
func sendEmpty(fd int, control []byte) error {
	var msg unix.Msghdr
	msg.Control = &control[0]
	msg.SetControllen(len(control))
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
	if errno != 0 {
		return errno
	}
	return nil
}
