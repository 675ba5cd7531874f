package hostmem

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// files reads the kernel's files, and keeps them open: so this process can read them also while it has no free descriptor.
type files struct {
	mu     sync.Mutex
	open   map[string]*os.File
	absent map[string]bool // files that were not there when files last tried to open them
	groups string          // the control groups of this process; when they change, files closes the files of the old groups
}

// read returns the content of a file.
func (f *files) read(path string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.open[path]; file != nil {
		if text, err := content(file); err == nil {
			return text, nil
		}
		f.drop(path) // its control group was removed
	}
	file, err := os.Open(path)
	switch {
	case f.absent[path] && full(err):
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	case errors.Is(err, fs.ErrNotExist):
		f.absent[path] = true
		return nil, err
	case err != nil:
		return nil, err
	}
	delete(f.absent, path)
	text, err := content(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.open[path] = file
	return text, nil
}

// full reports whether the error means that this process or the machine has no free descriptor.
func full(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// content returns the whole content of an open file as it is now.
func content(file *os.File) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
}

// in says in which control groups this process is. If they have changed, it closes all files of groups.
func (f *files) in(groups string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if groups == f.groups {
		return
	}
	f.groups = groups
	for path := range f.open {
		if !strings.Contains(path, "/proc/") {
			f.drop(path)
		}
	}
	clear(f.absent)
}

// drop closes a file. The caller holds f.mu.
func (f *files) drop(path string) {
	_ = f.open[path].Close() // it was only read
	delete(f.open, path)
}

// close closes all files. A later read opens its file again.
func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for path := range f.open {
		f.drop(path)
	}
}
