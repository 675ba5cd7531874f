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
	// Mode is the socket's permissions: who may write to it may connect. 0 means 0600, the service's own user.
	Mode fs.FileMode
	// OnPause, if set, is told why the listener stops accepting for a while: ErrFDTableFull and the like. It must
	// return soon.
	OnPause func(error)
}

// backlog is how many connections may wait to be accepted. The kernel lowers it to net.core.somaxconn.
const backlog = 1024

// Listen makes a socket at path. A directory that is missing is made with mode 0700; one that users other than this one
// may write to is refused with ErrUnsafeDir, because they could put a socket of their own in place of ours.
//
// One service at a time listens at a path: it holds a lock on the file "<path>.lock", which stays behind. Another one
// gets ErrInUse. The socket file of a service that died is taken over; anything else at path is ErrNotSocket.
func Listen(path string, config ListenConfig) (*Listener, error) {
	l, err := listen(path, config)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, config ListenConfig) (_ *Listener, err error) {
	addr, err := address(path)
	if err != nil {
		return nil, err
	}
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
	if err := takeOver(path, addr); err != nil {
		return nil, err
	}
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := bind(fd, path, addr, config.mode()); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newListener(fd, path, lock, config)
}

func (c ListenConfig) mode() fs.FileMode {
	if c.Mode == 0 {
		return 0o600
	}
	return c.Mode.Perm()
}

// bind makes the socket file and listens. The file is never open wider than mode: it gets the socket's own permissions
// less the umask at first, and what the umask took only afterwards.
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

// takeOver makes room at path. The caller holds its lock.
func takeOver(path string, addr *unix.SockaddrUnix) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return ErrNotSocket
	}
	// A service that is not ours holds no lock, but answers.
	c, err := connect(addr)
	switch {
	case err == nil:
		c.Close()
		return ErrInUse
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // its queue is full; it is of another type
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}
