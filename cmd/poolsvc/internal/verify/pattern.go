package verify

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// elementBytes is the size of an element of a pattern: float32.
const elementBytes = 4

// chunkBytes is how much is copied at a time where the CPU does not reach the memory.
const chunkBytes = 16 << 20

// write fills n elements of mem.
func write(mem mempool.Memory, n uint64, p pattern.Pattern) error {
	bytes := n * p.ElementBytes()
	if direct := mem.Bytes(); direct != nil {
		return pattern.Fill(direct[:bytes], p)
	}
	return chunks(bytes, func(chunk []byte, at uint64) error {
		if err := pattern.Fill(chunk, pattern.From(p, at/p.ElementBytes())); err != nil {
			return err
		}
		return mem.CopyFrom(at, chunk)
	})
}

// compare looks for differences between n elements of mem and the pattern.
//
// Errors: a [*pattern.MismatchError].
func compare(mem mempool.Memory, n uint64, p pattern.Pattern) error {
	bytes := n * p.ElementBytes()
	if direct := mem.Bytes(); direct != nil {
		r, err := pattern.Verify(direct[:bytes], p)
		if err != nil {
			return err
		}
		return r.Err()
	}
	return chunks(bytes, func(chunk []byte, at uint64) error {
		if err := mem.CopyTo(chunk, at); err != nil {
			return err
		}
		r, err := pattern.Verify(chunk, pattern.From(p, at/p.ElementBytes()))
		if err != nil {
			return err
		}
		return r.Err()
	})
}

// chunks calls f on all cores with room for each chunk and its place.
func chunks(bytes uint64, f func(chunk []byte, at uint64) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for at := uint64(0); at < bytes; at += chunkBytes {
		g.Go(func() error { return f(make([]byte, min(chunkBytes, bytes-at)), at) })
	}
	return g.Wait()
}
