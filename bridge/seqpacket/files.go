package seqpacket

import (
	"fmt"
	"os"
)

// WithFiles calls `f` with the descriptors of `files`, so that `f` can pass them to [Conn.Send] or [Conn.TrySend]. WithFiles makes sure
// that no file is closed during the call, because after a close the descriptor's number could belong to another file. WithFiles fails with
// os.ErrClosed if a file was closed before.
func WithFiles(files []*os.File, f func(fds []int) error) error {
	return withFiles(files, nil, f)
}

func withFiles(files []*os.File, fds []int, f func(fds []int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = withFiles(files[1:], append(fds, int(fd)), f) }); err != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	return inner
}
