package session

import (
	"os"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// TakeFiles takes the next n descriptors from fds. If descriptors are missing, TakeFiles returns fewer files, and the caller reports the
// error.
func TakeFiles(fds *seqpacket.FDs, n uint64) []*os.File {
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

// CloseFiles closes files that the service sent.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // the client has not written to these files, so closing loses no data
	}
}
