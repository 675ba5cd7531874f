package seqpacket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SocketFile is the file of a socket that this process has bound. As long as the socket is open, the file system gives no other file the same
// inode. So a SocketFile finds out whether the file at its path is still the file of this socket.
type SocketFile struct {
	path         string
	device, file uint64
}

// SocketFileAt returns the SocketFile at path. The caller has just bound a socket at path.
func SocketFileAt(path string) (SocketFile, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return SocketFile{}, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return SocketFile{path, stat.Dev, stat.Ino}, nil
}

// Check returns nil if the file is still at its path.
//
// Errors: [ErrSocketLost].
func (f SocketFile) Check() error {
	if f.file == 0 { // this process has never seen the file
		return nil
	}
	switch now, err := SocketFileAt(f.path); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: somebody removed %s", ErrSocketLost, f.path)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrSocketLost, err)
	case now != f:
		return fmt.Errorf("%w: another file is at %s", ErrSocketLost, f.path)
	}
	return nil
}

// Remove removes the file. If another file is at the path, or none, Remove does nothing. The caller must not have closed the socket yet.
func (f SocketFile) Remove() error {
	if f.Check() != nil {
		return nil //nolint:nilerr // the file is gone, or it is another socket's
	}
	return os.Remove(f.path)
}

// MendEvery is how often a listener checks that its socket's file is there.
const MendEvery = time.Second

// Mender makes the socket of a listener again whose file is lost, and says so. One goroutine at a time may use it.
type Mender struct {
	OnLost func(lost, failed error) // as in [ListenConfig]
	said   string                   // the last error `failed` of OnLost
}

// Mend calls `restore`, which makes the socket again, if `lost` is not nil or `whole` is false. `lost` is the result of [SocketFile.Check], and
// `whole` says whether the listener has all else that it needs.
func (m *Mender) Mend(lost error, whole bool, restore func() error) {
	if lost == nil && whole {
		m.said = ""
		return
	}
	failed := restore()
	text := ""
	if failed != nil {
		text = failed.Error()
	}
	if lost != nil && (failed == nil || text != m.said) {
		m.said = text
		if m.OnLost != nil {
			m.OnLost(lost, failed)
		}
	}
}

// LossText describes for an operator what OnLost of [ListenConfig] reports.
func LossText(lost, failed error) string {
	if failed != nil {
		return fmt.Sprintf("%v, and nobody can connect; sessions go on. The socket could not be made again: %v", lost, failed)
	}
	return fmt.Sprintf("%v: the service has made the socket again; if a program that cleans folders removes such files, choose another folder", lost)
}

// TakeOver removes the socket file at path if no process listens on its socket. If there is no file, TakeOver does nothing. TakeOver does not
// follow a link.
//
// Errors: [ErrInUse], [ErrNotSocket], and errors of the file system.
func TakeOver(path string) error {
	addr, err := address(path)
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return ErrNotSocket
	}
	// The program that listens need not use this package, and then holds no lock. To find out whether a program listens, try to connect.
	c, err := connect(addr)
	switch {
	case err == nil:
		c.Close()
		return ErrInUse
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // EAGAIN: its queue is full; EPROTOTYPE: a socket of another type
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return err
}
