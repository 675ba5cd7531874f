package mempool

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/cuda"
)

// insist calls give(), and calls give() once more if the first call fails and [cuda.Hopeless] is false. give() releases something; the
// second call continues where the first call failed. Anything that give() does not release is lost until this process ends.
func insist(give func() error) error {
	err := give()
	if err == nil || cuda.Hopeless(err) {
		return err
	}
	return give()
}

// Free frees an allocation. If the first try fails, Free tries once more.
func Free(a Allocation) error { return insist(a.Free) }

// closeFile closes a file. It is not an error if the file is closed already.
func closeFile(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
