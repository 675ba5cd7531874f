package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks the file at path. The lock lasts until the returned FD is closed or this process ends. No service removes the lock file:
// otherwise a service that has just opened the file could lock the removed file, and another service could make and lock a new file.
func lockFile(path string) (*FD, error) {
	raw, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	fd := NewFD(raw)
	for {
		switch err := unix.Flock(raw, unix.LOCK_EX|unix.LOCK_NB); err {
		case nil:
			return fd, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			fd.Close()
			return nil, failed(ErrInUse, "flock", err)
		default:
			fd.Close()
			return nil, os.NewSyscallError("flock", err)
		}
	}
}
