package bridge

import (
	"os"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

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
