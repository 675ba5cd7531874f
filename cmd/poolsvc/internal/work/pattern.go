package work

import (
	"fmt"

	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// Pattern describes a pattern of package pattern in a form that JSON can encode.
type Pattern struct {
	// Kind is "affine" (float32), "masked" (uint32) or "fibonacci" (uint64).
	Kind      string  `json:"kind,omitempty"`
	Scale     float64 `json:"scale"`
	Offset    float64 `json:"offset"`
	Tolerance float64 `json:"tolerance,omitempty"`
	Mask      uint32  `json:"mask,omitempty"`
}

// Transform changes memory in place: each element x becomes Scale·x + Offset.
type Transform struct {
	Scale  float64 `json:"scale"`
	Offset float64 `json:"offset"`
}

// Affine returns the pattern whose element i is float32(scale·i + offset).
func Affine(scale, offset float64) *Pattern {
	return &Pattern{Kind: "affine", Scale: scale, Offset: offset}
}

// Within returns a copy of p that has this tolerance.
func (p Pattern) Within(tolerance float64) *Pattern {
	p.Tolerance = tolerance
	return &p
}

// Masked returns the pattern whose element i is (scale·i + offset) XOR mask. Its elements have the type uint32.
func Masked(scale, offset, mask uint32) *Pattern {
	return &Pattern{Kind: "masked", Scale: float64(scale), Offset: float64(offset), Mask: mask}
}

// Fibonacci returns the pattern of the Fibonacci numbers from F(first) on. Its elements have the type uint64.
func Fibonacci(first uint64) *Pattern { return &Pattern{Kind: "fibonacci", Offset: float64(first)} }

// ElementBytes is the size of an element in bytes, for every pattern except Fibonacci.
const ElementBytes = 4

// DType returns the element type.
func (p Pattern) DType() mempool.DType {
	switch p.Kind {
	case "masked":
		return mempool.Uint32
	case "fibonacci":
		return mempool.Uint64
	}
	return mempool.Float32
}

// pattern returns p in the form of package pattern.
func (p Pattern) pattern() (pattern.Pattern, error) {
	switch p.Kind {
	case "", "affine":
		return pattern.Affine{Scale: p.Scale, Offset: p.Offset, Tolerance: p.Tolerance}, nil
	case "masked":
		return pattern.Masked{Scale: uint32(p.Scale), Offset: uint32(p.Offset), Mask: p.Mask}, nil
	case "fibonacci":
		return pattern.From(pattern.Fibonacci{}, uint64(p.Offset)), nil
	}
	return nil, fmt.Errorf("unknown pattern %q: expected affine, masked or fibonacci", p.Kind)
}
