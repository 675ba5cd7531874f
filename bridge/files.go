package bridge

import (
	"fmt"
	"os"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// withFDs calls f with the descriptors of files. No file is closed during the call, because a descriptor's number could then be that of
// another file. It fails with os.ErrClosed if a file was closed before.
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

// takeFiles takes the first n descriptors. If some are missing, the receiver of the files reports the error.
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
		_ = f.Close() // files that are read or mapped, so closing loses nothing
	}
}
