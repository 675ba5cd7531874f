// Package digest computes digests of arrays.
package digest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"runtime"
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
)

// Prefix is bridge.DigestPrefix.
const Prefix = "sha256:"

const pieceBytes = 1 << 20

// Of returns the SHA-256 digest of each array, which is C-contiguous. Several goroutines read, each into a piece, from byte `at` of array i on.
func Of(ctx context.Context, arrays []mempool.NamedTensor, read func(i int, piece []byte, at uint64) error) ([]string, error) {
	digests, errs := make([]string, len(arrays)), make([]error, len(arrays))
	running := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, a := range arrays {
		running <- struct{}{}
		all.Go(func() {
			defer func() { <-running }()
			end, err := a.Tensor.Extent()
			n, seen := end-a.Tensor.ByteOffset, sha256.New()
			piece := make([]byte, min(n, pieceBytes))
			for at := uint64(0); at < n && err == nil; at += pieceBytes {
				part := piece[:min(n-at, pieceBytes)]
				err = errors.Join(ctx.Err(), read(i, part, at))
				seen.Write(part)
			}
			digests[i], errs[i] = hex.EncodeToString(seen.Sum(nil)), err
		})
	}
	all.Wait()
	return digests, cmp.Or(errs...)
}
