package bridge

import (
	"fmt"
	"os"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// withFDs calls f with the descriptors of files, none of which is closed meanwhile: its number could be that of another
// file by then. It fails with os.ErrClosed if one has been closed before.
func withFDs(files []*os.File, fds []int, f func(fds []int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = withFDs(files[1:], append(fds, int(fd)), f) }); err != nil {
		return fmt.Errorf("%w: %w", os.ErrClosed, err)
	}
	return inner
}

// takeFiles takes the first n descriptors; missing ones are for the kind to complain about.
func takeFiles(fds *seqpacket.FDs, n uint64) []*os.File {
	var files []*os.File
	for range min(n, wire.MaxFDs) {
		fd := fds.Next()
		if fd == nil {
			break
		}
		files = append(files, fd.File("poolbridge export"))
	}
	return files
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // read from or mapped; nothing was written through it
	}
}
