package mempool

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/cuda"
)

// insist gives something back for good, and tries again what failed: what is not given back now is lost until this
// process ends. give takes up where it left off.
func insist(give func() error) error {
	err := give()
	if err == nil || cuda.Hopeless(err) {
		return err
	}
	return give()
}

// Free gives an allocation back for good, and tries again where that fails.
func Free(a Allocation) error { return insist(a.Free) }

// closeFile closes a file that may have been closed before.
func closeFile(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
