package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// boundedLog appends lines to a file. If a line would make the file larger than a limit, boundedLog first removes the
// older half of the file.
type boundedLog struct {
	file   *os.File
	most   int64
	format logging // the format of the messages that boundedLog itself adds

	mu     sync.Mutex
	failed bool // the log already says that the file could not be shortened
}

// bound limits the size of the file to which a command writes its standard error. The limit is l.logBytes. If l.logBytes is 0, or if
// standard error is not a regular file, bound does nothing. If bound cannot limit the file, it sets l.unbounded to the error that says why.
func (l *life) bound(c *cobra.Command, _ []string) error {
	if l.logBytes == 0 {
		return nil
	}
	info, err := os.Stderr.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if l.log, l.unbounded = newBoundedLog(os.Stderr, int64(l.logBytes)); l.unbounded == nil {
		c.SetErr(l.log)
	}
	return nil
}

// newBoundedLog makes a boundedLog that appends to `file`. A boundedLog needs a descriptor that is readable and has O_APPEND. If the
// descriptor of `file` is readable, newBoundedLog sets O_APPEND on it. This sets O_APPEND also in all other processes that share the
// descriptor. Otherwise newBoundedLog opens the file again, and replaces the old descriptor with the new one, but only in this process.
//
// Errors: an error of the system if `file` was opened for writing only and this process may not read the file.
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
		return nil, fmt.Errorf("it was opened for writing only, and shortening it needs reading: open it for both, as `2<>FILE` does: %w", err)
	}
	defer again.Close()
	descriptor, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil {
		err = unix.Dup3(int(again.Fd()), fd, descriptor&unix.FD_CLOEXEC*unix.O_CLOEXEC)
	}
	return &boundedLog{file: file, most: most}, os.NewSyscallError("dup3", err)
}

// Write appends a line to the file. It cuts off the end of a line that is longer than the limit. If the file cannot be shortened, Write
// appends the line nevertheless. The first time, Write also appends a warning that the file cannot be shortened.
func (b *boundedLog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := p
	if int64(len(line)) > b.most {
		line = append(bytes.Clone(p[:b.most-1]), '\n')
	}
	if err := b.shorten(int64(len(line))); err != nil && !b.failed {
		b.failed = true
		var text bytes.Buffer
		slog.New(b.format.handler(&text, slog.LevelWarn)).Warn("the log cannot be shortened, and grows (--log-bytes)", "error", err)
		line = append(text.Bytes(), line...)
	}
	if _, err := b.file.Write(line); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shorten shortens the file if the file has no room for `room` more bytes within the limit. It keeps the last lines: together, they have at
// most half as many bytes as the limit. It first writes these lines over the beginning of the file and then cuts the file behind them. So
// the file is never empty, even if the service is killed between these steps. Lines that other processes append during these steps stay in
// the file. But a line that another process appends between the last call of Stat in keepLate and the cut is lost, because the kernel has
// no call that cuts a file only if the file still has an expected size.
func (b *boundedLog) shorten(room int64) error {
	info, err := b.file.Stat()
	if err != nil || info.Size()+room <= b.most {
		return err
	}
	fd := int(b.file.Fd())
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil && seals&unix.F_SEAL_SHRINK != 0 {
		return errors.New("its memory is sealed against that")
	}
	tail := make([]byte, min(b.most/2, b.most-room, info.Size()))
	if _, err := b.file.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return err
	}
	_, tail, _ = bytes.Cut(tail, []byte("\n"))
	if err := overwrite(fd, tail, 0); err != nil {
		return err
	}
	kept, err := b.keepLate(info.Size(), int64(len(tail)))
	if err != nil {
		return err
	}
	return b.file.Truncate(kept)
}

// keepLate copies the bytes that other processes have appended behind the offset `end`. It copies them to the offset `kept`. It repeats
// this until there are no new bytes, and returns how many bytes of the file to keep.
func (b *boundedLog) keepLate(end, kept int64) (int64, error) {
	for {
		info, err := b.file.Stat()
		if err != nil || info.Size() <= end {
			return kept, err
		}
		late := make([]byte, info.Size()-end)
		if _, err := b.file.ReadAt(late, end); err != nil {
			return kept, err
		}
		if err := overwrite(int(b.file.Fd()), late, kept); err != nil {
			return kept, err
		}
		end, kept = info.Size(), kept+int64(len(late))
	}
}

// overwrite writes text at the offset `at` of a file whose descriptor has O_APPEND. While it writes, it removes O_APPEND from the
// descriptor. During this time, another process may write with the same descriptor. The text of that process still goes to the end of the
// file, because the file offset of the descriptor is at the end, and overwrite does not move it.
func overwrite(fd int, text []byte, at int64) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_APPEND) // with O_APPEND, pwrite appends
	}
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	for err == nil && len(text) > 0 {
		var n int
		if n, err = unix.Pwrite(fd, text, at); errors.Is(err, unix.EINTR) {
			n, err = 0, nil
		}
		text, at = text[max(n, 0):], at+int64(max(n, 0))
	}
	_, again := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return errors.Join(os.NewSyscallError("pwrite", err), os.NewSyscallError("fcntl F_SETFL", again))
}
