package seqpacket

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ListenFile makes a Listener of a socket that listens already, for example a socket from systemd (ListenSequentialPacket= in a socket
// unit). The program that made the socket owns the file at the socket's path: Close does not remove that file, and the listener does not
// lock "<path>.lock" as Listen does. If the file is lost, the listener cannot make it again, and config.OnLost says so. ListenFile does not
// use config.Mode. ListenFile closes `file`, even if ListenFile fails.
//
// Errors: [ErrNotListening] if `file` is not a listening Unix socket of type SOCK_SEQPACKET with a path.
func ListenFile(file *os.File, config ListenConfig) (_ *Listener, err error) {
	defer file.Close()
	var fd int
	raw, err := file.SyscallConn()
	if err == nil {
		var dup error
		err = raw.Control(func(given uintptr) { fd, dup = unix.FcntlInt(given, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(err, os.NewSyscallError("fcntl", dup))
	}
	if err != nil {
		return nil, fmt.Errorf("the socket %s that was handed over: %w", file.Name(), err)
	}
	path, err := listensAt(fd)
	if err == nil {
		err = os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
	}
	if err == nil {
		if e := refuseFDs(fd); !errors.Is(e, ErrNotSupported) {
			err = e
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the socket %s that was handed over: %w", file.Name(), err)
	}
	at, err := SocketFileAt(path)
	if err != nil { // this process does not see the file, for example in a container
		at = SocketFile{path: path}
	}
	return newListener(fd, at, nil, config)
}

// ListenAgain is like [ListenFile] for a socket that [Listen] made in a process that has ended, and which another process has kept. The socket's
// file is the listener's again, with the lock.
func ListenAgain(file *os.File, config ListenConfig) (*Listener, error) {
	l, err := ListenFile(file, config)
	if err != nil {
		return nil, err
	}
	for range 100 {
		if l.lock, err = lockFile(l.Path() + ".lock"); !errors.Is(err, ErrInUse) {
			break
		}
		time.Sleep(10 * time.Millisecond) // another program tries to listen there, and will find that this socket does
	}
	return l, nil // without the lock, the file stays
}

// listensAt returns the path at which a socket listens.
func listensAt(fd int) (path string, err error) {
	for _, one := range []struct {
		option, want int
		what         string
	}{
		{unix.SO_DOMAIN, unix.AF_UNIX, "no Unix socket"},
		{unix.SO_TYPE, unix.SOCK_SEQPACKET, "a socket of another type"},
		{unix.SO_ACCEPTCONN, 1, "a socket that does not listen"},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, one.option)
		switch {
		case errors.Is(err, unix.ENOTSOCK):
			return "", fmt.Errorf("%w, this is no socket", ErrNotListening)
		case err != nil:
			return "", os.NewSyscallError("getsockopt", err)
		case got != one.want:
			return "", fmt.Errorf("%w, this is %s", ErrNotListening, one.what)
		}
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	name := addr.(*unix.SockaddrUnix).Name
	if name == "" || name[0] == '@' { // an abstract address has no permissions
		return "", fmt.Errorf("%w, this one has no path", ErrNotListening)
	}
	return name, nil
}
