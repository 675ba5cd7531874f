package bridge

import (
	"os"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// takeFiles takes the next n descriptors from fds. If descriptors are missing, takeFiles returns fewer files, and the caller reports the
// error.
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
		_ = f.Close() // the client has not written to these files, so closing loses no data
	}
}
