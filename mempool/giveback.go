package mempool

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/cuda"
)

// insist calls give, and once more if it fails. give releases something and continues where an earlier call failed. What it does not
// release is lost until this process ends.
func insist(give func() error) error {
	err := give()
	if err == nil || cuda.Hopeless(err) {
		return err
	}
	return give()
}

// Free frees an allocation, with a second try if that fails.
func Free(a Allocation) error { return insist(a.Free) }

// closeFile closes a file. It is not an error if the file is closed already.
func closeFile(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
