package mempool

import (
	"errors"
	"os"

	"github.com/poolbridge/poolbridge/cuda"
)

// insist calls the function `give`, which releases a resource. If the call fails, and [cuda.Hopeless] returns false for the error, insist
// calls `give` a second time; the second call continues where the first call failed. If `give` does not release the resource, the resource
// stays in use until this process ends.
func insist(give func() error) error {
	err := give()
	if err == nil || cuda.Hopeless(err) {
		return err
	}
	return give()
}

// Free frees an allocation. If the first try fails, Free tries once more, unless [cuda.Hopeless] returns true for the error.
func Free(a Allocation) error { return insist(a.Free) }

// closeFile closes a file. It is not an error if the file is closed already.
func closeFile(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
