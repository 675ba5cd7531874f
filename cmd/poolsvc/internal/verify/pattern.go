package verify

import (
	"fmt"
	"reflect"

	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// Pattern says which elements a buffer contains, in a form that JSON can encode.
type Pattern struct {
	// Kind is "affine" (float32), "masked" (uint32) or "fibonacci" (uint64). Element i is Scale·i + Offset; of "masked", this XOR Mask; of
	// "fibonacci", the Fibonacci number i + Offset.
	Kind      string  `json:"kind"`
	Elements  uint64  `json:"elements"`
	Scale     float64 `json:"scale"`
	Offset    float64 `json:"offset"`
	Tolerance float64 `json:"tolerance"`
	Mask      uint32  `json:"mask"`
	// Halves says that the elements are in two arrays, "first" and "second", of which each has a multiple of 256 bytes.
	Halves bool `json:"halves"`
}

func affine(n uint64, scale, offset float64) *Pattern {
	return &Pattern{Kind: "affine", Elements: n, Scale: scale, Offset: offset}
}

// masked returns n elements of (2·i + 1337) XOR 0xDEADBEEF, from element `first` on.
func masked(n, first uint64) *Pattern {
	return &Pattern{Kind: "masked", Elements: n, Scale: 2, Offset: float64(1337 + 2*first), Mask: 0xDEADBEEF}
}

// fibonacci returns the content of a frame: Fibonacci numbers from F(number) on.
func fibonacci(number uint64) *Pattern {
	return &Pattern{Kind: "fibonacci", Elements: frameElements, Scale: 1, Offset: float64(number)}
}

// megabyte is the number of elements of a pattern with 1 MiB.
const megabyte = 1 << 18

var dtypes = map[string]mempool.DType{"affine": mempool.Float32, "masked": mempool.Uint32, "fibonacci": mempool.Uint64}

// tensor describes memory for the pattern.
func (p *Pattern) tensor() mempool.Tensor {
	if !p.Halves {
		return mempool.Tensor{DType: dtypes[p.Kind], Shape: []uint64{p.Elements}}
	}
	half := mempool.Tensor{DType: dtypes[p.Kind], Shape: []uint64{p.Elements / 2}}
	// Pack fails only for sizes that no check has; Allocate would refuse the empty Tensor.
	both, _ := mempool.Pack(mempool.NamedTensor{Name: "first", Tensor: half}, mempool.NamedTensor{Name: "second", Tensor: half})
	return both
}

// inHalves returns p in two arrays.
func (p *Pattern) inHalves() *Pattern {
	q := *p
	q.Halves = true
	return &q
}

// describedBy returns an error if t has other arrays than the pattern.
func (p *Pattern) describedBy(t mempool.Tensor) error {
	if want := p.tensor().Arrays; !reflect.DeepEqual(want, t.Arrays) {
		return fmt.Errorf("the memory has the arrays %v, not %v", t.Arrays, want)
	}
	return nil
}

func (p *Pattern) bytes() uint64 { return p.Elements * dtypes[p.Kind].ItemSize() }

// content returns p in the form of package pattern.
func (p *Pattern) content() pattern.Pattern {
	switch p.Kind {
	case "masked":
		return pattern.Masked{Scale: uint32(p.Scale), Offset: uint32(p.Offset), Mask: p.Mask}
	case "fibonacci":
		return pattern.From(pattern.Fibonacci{}, uint64(p.Offset))
	}
	return pattern.Affine{Scale: p.Scale, Offset: p.Offset, Tolerance: p.Tolerance}
}
