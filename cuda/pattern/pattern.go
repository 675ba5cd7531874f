package pattern

import (
	"errors"
	"fmt"
	"math"
)

// Pattern defines the value of every element of memory. The patterns are [Affine], [Masked], [Frame], [Fibonacci], and the results of [From]. A
// program can copy patterns, and compare them with ==.
type Pattern interface {
	fmt.Stringer
	// Validate returns an error if a field of the pattern has a value that is not allowed.
	Validate() error
	// ElementBytes returns the size of an element in bytes: 4 or 8.
	ElementBytes() uint64
	// Bits returns the bytes that element i has in memory. They are the low bytes of the result.
	Bits(i uint64) uint64
	// Format returns the value of an element as a text, for error messages. The parameter bits has the bytes of the element, as in the result of
	// Bits.
	Format(bits uint64) string

	// fill writes elements, beginning with index first. mem holds whole elements.
	fill(mem []byte, first uint64)
	// check adds the wrong elements of mem to r. Their Index is the index in the pattern.
	check(mem []byte, first uint64, r *Report)
	// kernel returns the base name of the pattern's kernels, the index of the first element, and the other parameters.
	kernel() (name string, first uint64, params []any)
}

// maxIndex is the greatest index of an element. A float64 can represent every integer up to this number exactly.
const maxIndex = 1 << 53

// ErrSize means that the size of the memory is not a multiple of the element size, or that the index of an element is greater than 2^53.
var ErrSize = errors.New("pattern: memory does not hold whole elements")

// elements returns how many elements of p a given number of bytes holds.
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

// inRange returns an error if n elements of p have indices that are too large.
func inRange(p Pattern, n uint64) error {
	if _, first, _ := p.kernel(); first > maxIndex || n > maxIndex-first {
		return fmt.Errorf("%w: %d elements from index %d on go beyond the greatest index 2^53", ErrSize, n, first)
	}
	return nil
}

// From returns a shifted pattern: its element i is the element first+i of p.
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
		return name, math.MaxUint64, params // inRange then returns an error
	}
	return name, first + s.first, params
}
