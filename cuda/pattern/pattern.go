package pattern

import (
	"errors"
	"fmt"
	"math"
)

// Pattern says what the elements of memory ought to be. Patterns are plain values: [Affine], [Masked], [Frame],
// [Fibonacci], and what [From] makes of them.
type Pattern interface {
	fmt.Stringer
	// Validate refuses a pattern that no memory could have.
	Validate() error
	// ElementBytes is the size of an element: 4 or 8.
	ElementBytes() uint64
	// Bits is element i as it lies in memory, in the low bytes.
	Bits(i uint64) uint64
	// Format writes an element as a person would.
	Format(bits uint64) string

	// fill writes elements from index first on; mem holds whole ones.
	fill(mem []byte, first uint64)
	// check adds the wrong ones to r, by their position in the pattern.
	check(mem []byte, first uint64, r *Report)
	// kernel names the kernels, and gives the index that they begin with and their parameters after that.
	kernel() (name string, first uint64, params []any)
}

// maxIndex bounds the indices: up to here float64 has every integer.
const maxIndex = 1 << 53

// ErrSize is the error for memory that does not hold whole elements, or more than 2^53.
var ErrSize = errors.New("pattern: memory does not hold whole elements")

// elements is how many elements of p are in so many bytes.
func elements(p Pattern, bytes int) (uint64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	n, rest := uint64(bytes)/p.ElementBytes(), uint64(bytes)%p.ElementBytes()
	if rest != 0 {
		return 0, fmt.Errorf("%w: %d bytes are not a multiple of %d", ErrSize, bytes, p.ElementBytes())
	}
	return n, inRange(p, n)
}

// inRange refuses elements with indices that are too large.
func inRange(p Pattern, n uint64) error {
	if _, first, _ := p.kernel(); first > maxIndex || n > maxIndex-first {
		return fmt.Errorf("%w: index %d and %d after it, 2^53 at most", ErrSize, first, n)
	}
	return nil
}

// From is p seen from an element on: its element i is p's element first+i.
func From(p Pattern, first uint64) Pattern {
	if first == 0 {
		return p
	}
	return shifted{p, first}
}

type shifted struct {
	Pattern
	first uint64
}

func (s shifted) String() string { return fmt.Sprintf("%v from element %d on", s.Pattern, s.first) }

func (s shifted) Bits(i uint64) uint64 { return s.Pattern.Bits(s.first + i) }

func (s shifted) fill(mem []byte, first uint64) { s.Pattern.fill(mem, s.first+first) }

func (s shifted) check(mem []byte, first uint64, r *Report) {
	var inner Report
	s.Pattern.check(mem, s.first+first, &inner)
	for i := range inner.First {
		inner.First[i].Index -= s.first
	}
	r.merge(inner)
}

func (s shifted) kernel() (string, uint64, []any) {
	name, first, params := s.Pattern.kernel()
	if first > math.MaxUint64-s.first {
		return name, math.MaxUint64, params // which inRange refuses
	}
	return name, first + s.first, params
}
