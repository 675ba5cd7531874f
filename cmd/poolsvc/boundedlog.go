package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// boundedLog is a file that is appended to and does not grow beyond a bound: its older half goes before it would.
type boundedLog struct {
	file *os.File
	most int64

	mu     sync.Mutex
	failed bool // it was said that the file could not be shortened
}

// bound has what a command writes to standard error kept within l.logBytes, where that is a file.
func (l *life) bound(c *cobra.Command, _ []string) error {
	if l.logBytes == 0 {
		return nil
	}
	info, err := os.Stderr.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	b, err := newBoundedLog(os.Stderr, int64(l.logBytes))
	if err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "poolsvc: --log-bytes: the log cannot be bounded, and grows: %v\n", err)
		return nil
	}
	c.SetErr(b)
	return nil
}

// newBoundedLog bounds file, which it makes one that can be read, and that all that have the descriptor append to.
//
// Errors: the system's, where file was opened for writing only and may not be read.
func newBoundedLog(file *os.File, most int64) (*boundedLog, error) {
	fd := int(file.Fd())
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_GETFL", err)
	}
	if flags&unix.O_ACCMODE == unix.O_RDWR {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_APPEND)
		return &boundedLog{file: file, most: most}, os.NewSyscallError("fcntl F_SETFL", err)
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("it was opened for writing only, and to shorten it is to read it: open it for both, as `2<>FILE` does: %w", err)
	}
	defer again.Close()
	descriptor, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil {
		err = unix.Dup3(int(again.Fd()), fd, descriptor&unix.FD_CLOEXEC*unix.O_CLOEXEC)
	}
	return &boundedLog{file: file, most: most}, os.NewSyscallError("dup3", err)
}

// Write appends to the file: of what is longer than the bound, the beginning. What was written counts as written, also where the file could not
// be shortened; it says so once.
func (b *boundedLog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := p
	if int64(len(line)) > b.most {
		line = append(bytes.Clone(p[:b.most-1]), '\n')
	}
	if err := b.shorten(int64(len(line))); err != nil && !b.failed {
		b.failed = true
		line = fmt.Appendf(nil, "poolsvc: --log-bytes: the log cannot be shortened, and grows: %v\n%s", err, line)
	}
	if _, err := b.file.Write(line); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shorten leaves the last lines, half of the bound at most, if the file does not have room for so many bytes.
func (b *boundedLog) shorten(room int64) error {
	info, err := b.file.Stat()
	if err != nil || info.Size()+room <= b.most {
		return err
	}
	tail := make([]byte, min(b.most/2, b.most-room, info.Size()))
	if _, err := b.file.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return err
	}
	_, tail, _ = bytes.Cut(tail, []byte("\n"))
	if err := b.file.Truncate(0); err != nil {
		return err
	}
	_, err = b.file.Write(tail)
	return err
}
