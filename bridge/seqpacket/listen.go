package seqpacket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ListenConfig says how a service listens.
type ListenConfig struct {
	// Mode is the permissions of the socket file: users who may write to the file, and enter its folder, may connect. Listen makes a missing
	// folder with mode 0700. Mode 0 means 0600: only the service's own user may connect.
	Mode fs.FileMode
	// If OnPause is not nil, the listener calls OnPause when it pauses accepting. The argument is the reason, such as ErrFDTableFull. OnPause
	// must return soon.
	OnPause func(error)
	// If OnLost is not nil, the listener calls OnLost when it finds that its socket's file was removed or replaced: nobody can connect any more.
	// `lost` says what happened. If `failed` is nil, the listener has made the socket again; otherwise `failed` says why it could not. The
	// listener tries again every second, and calls OnLost again only if `failed` changes. OnLost must return soon.
	OnLost func(lost, failed error)
	// If Made is not nil, the listener calls Made with each socket that it is about to use. The listener owns the file. If Made fails, the
	// listener does not use the socket.
	Made func(socket *os.File) error
}

// backlog is how many connections may wait until the service accepts them. If net.core.somaxconn is smaller, the kernel uses
// net.core.somaxconn instead.
const backlog = 1024

// Listen makes a socket at path. If the directory of path does not exist, Listen makes the directory with mode 0700. If other users may
// write to the directory, Listen fails with ErrUnsafeDir, because these users could replace the socket by their own socket.
//
// Only one service at a time can listen at a path. The service holds a lock on the file "<path>.lock". This file stays after the service
// has ended. A second service gets ErrInUse. If a dead service has left a socket file, Listen replaces this file. If another kind of file
// is at path, Listen fails with ErrNotSocket.
func Listen(path string, config ListenConfig) (*Listener, error) {
	l, err := listen(path, config)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, config ListenConfig) (_ *Listener, err error) {
	if err := safeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	fd, at, err := claim(path, config.mode())
	if err != nil {
		return nil, err
	}
	return newListener(fd, at, lock, config)
}

// claim makes a socket at path. The caller holds the lock of path.
func claim(path string, mode fs.FileMode) (fd int, at SocketFile, err error) {
	addr, err := address(path)
	if err != nil {
		return -1, at, err
	}
	if err := TakeOver(path); err != nil {
		return -1, at, err
	}
	if fd, err = socket(); err != nil {
		return -1, at, err
	}
	if err = bind(fd, path, addr, mode); err == nil {
		at, err = SocketFileAt(path)
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, at, err
}

func (c ListenConfig) mode() fs.FileMode {
	if c.Mode == 0 {
		return 0o600
	}
	return c.Mode.Perm()
}

// bind makes the socket file and listens. The file never has more permissions than `mode`: bind(2) makes the file with the permissions of
// `mode`, without those that the umask removes. Then chmod(2) adds the removed permissions.
func bind(fd int, path string, addr *unix.SockaddrUnix, mode fs.FileMode) error {
	if err := unix.Fchmod(fd, uint32(mode)); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if err := refuseFDs(fd); err != nil && !errors.Is(err, ErrNotSupported) {
		return err
	}
	if err := unix.Bind(fd, addr); err != nil {
		return os.NewSyscallError("bind", err)
	}
	err := os.Chmod(path, mode)
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}
