package seqpacket

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks the file at path. The lock lasts until the returned FD is closed or this process ends. No service removes the lock file.
// If another program removes it while lockFile locks it, lockFile locks the next file.
func lockFile(path string) (*FD, error) {
	for {
		fd, err := lockOnce(path)
		if err != nil || isAt(fd, path) {
			return fd, err
		}
		fd.Close()
	}
}

// isAt reports whether the file of fd is the file at path.
func isAt(fd *FD, path string) bool {
	var open, there unix.Stat_t
	return unix.Fstat(fd.Raw(), &open) == nil && unix.Lstat(path, &there) == nil && open.Dev == there.Dev && open.Ino == there.Ino
}

func lockOnce(path string) (*FD, error) {
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
			return nil, ErrInUse
		default:
			fd.Close()
			return nil, os.NewSyscallError("flock", err)
		}
	}
}
