package main

import (
	"bytes"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"
)

// boundedLog is a file that is appended to and does not grow beyond a bound: its older half goes then.
type boundedLog struct {
	file *os.File
	most int64

	mu sync.Mutex
}

// bound has what a command writes to standard error kept below l.logBytes, where that is a file.
func (l *life) bound(c *cobra.Command, _ []string) error {
	if l.logBytes == 0 {
		return nil
	}
	info, err := os.Stderr.Stat()
	if err == nil && info.Mode().IsRegular() {
		c.SetErr(&boundedLog{file: os.Stderr, most: int64(l.logBytes)})
	}
	return err
}

// Write appends to the file. What was written counts as written, also where the file could not be shortened then.
func (b *boundedLog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.file.Write(p)
	if err == nil {
		_ = b.shorten()
	}
	return n, err
}

// shorten leaves the last lines, half of the bound at most, if the file is beyond the bound.
func (b *boundedLog) shorten() error {
	info, err := b.file.Stat()
	if err != nil || info.Size() <= b.most {
		return err
	}
	tail := make([]byte, b.most/2)
	if _, err := b.file.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return err
	}
	_, tail, _ = bytes.Cut(tail, []byte("\n"))
	if err := b.file.Truncate(0); err != nil {
		return err
	}
	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = b.file.Write(tail)
	return err
}
