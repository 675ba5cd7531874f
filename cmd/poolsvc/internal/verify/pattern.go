package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/mempool"
)

// Pattern is what one side writes and the other expects: element i is float32(Scale·i + Offset), computed in float64.
type Pattern struct {
	Scale  float64 `json:"scale"`
	Offset float64 `json:"offset"`
}

func (p Pattern) at(i uint64) float32 { return float32(p.Scale*float64(i) + p.Offset) }

func (p Pattern) String() string { return fmt.Sprintf("%g·i + %g", p.Scale, p.Offset) }

// elementBytes is the size of an element of a pattern: float32.
const elementBytes = 4

// chunkElements is how many elements are copied at a time where the CPU does not reach the memory.
const chunkElements = 4 << 20

// Write fills n elements of mem.
func (p Pattern) Write(mem mempool.Memory, n uint64) error {
	return p.chunks(mem, n, func(part []byte, first uint64, direct bool) error {
		for i := range uint64(len(part) / elementBytes) {
			binary.NativeEndian.PutUint32(part[i*elementBytes:], math.Float32bits(p.at(first+i)))
		}
		if direct {
			return nil
		}
		return mem.CopyFrom(first*elementBytes, part)
	})
}

// Check compares n elements of mem with the pattern, exactly.
//
// Errors: a [*MismatchError].
func (p Pattern) Check(mem mempool.Memory, n uint64) error {
	return p.chunks(mem, n, func(part []byte, first uint64, direct bool) error {
		if !direct {
			if err := mem.CopyTo(part, first*elementBytes); err != nil {
				return err
			}
		}
		var wrong MismatchError
		for i := range uint64(len(part) / elementBytes) {
			got := math.Float32frombits(binary.NativeEndian.Uint32(part[i*elementBytes:]))
			if want := p.at(first + i); got != want {
				wrong.add(first+i, want, got)
			}
		}
		if wrong.Count > 0 {
			wrong.Pattern = p
			return &wrong
		}
		return nil
	})
}

// chunks calls f for parts of the n elements of mem, on all cores. direct says that part is the memory itself, not a
// place to copy it from or to.
func (p Pattern) chunks(mem mempool.Memory, n uint64, f func(part []byte, first uint64, direct bool) error) error {
	direct := mem.Bytes()
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for first := uint64(0); first < n; first += chunkElements {
		count := min(chunkElements, n-first)
		g.Go(func() error {
			if direct != nil {
				return f(direct[first*elementBytes:][:count*elementBytes], first, true)
			}
			return f(make([]byte, count*elementBytes), first, false)
		})
	}
	return g.Wait()
}

// MismatchError says where memory differs from its pattern.
type MismatchError struct {
	Pattern Pattern
	// Count is the number of wrong elements in the part that was looked at.
	Count uint64
	first []string
}

func (e *MismatchError) add(i uint64, want, got float32) {
	e.Count++
	if len(e.first) < 3 {
		e.first = append(e.first, fmt.Sprintf("[%d] is %g, not %g", i, got, want))
	}
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%d elements differ from %v: %s", e.Count, e.Pattern, strings.Join(e.first, ", "))
}
