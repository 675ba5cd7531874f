package pattern

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Affine is a pattern of float32. Element i is float32(Scale·i + Offset), and the multiplication and the addition are each rounded to float64,
// as in NumPy.
type Affine struct {
	Scale  float64 `json:"scale"`
	Offset float64 `json:"offset"`
	// Tolerance is the greatest difference that Verify allows between an element in memory and its value in the pattern. If Tolerance is 0, the two
	// must be equal; 0 and −0 are equal.
	Tolerance float64 `json:"tolerance,omitempty"`
}

// At returns element i.
func (p Affine) At(i uint64) float32 { return affine(p.Scale, float64(i), p.Offset) }

// affine returns scale·x + offset. The conversion to float64 makes the compiler round after the multiplication. Without the conversion, the
// compiler may use one fused operation, which rounds only once and can give another result.
func affine(scale, x, offset float64) float32 { return float32(float64(scale*x) + offset) }

func (p Affine) String() string {
	s := fmt.Sprintf("%g·i + %g", p.Scale, p.Offset)
	if p.Tolerance != 0 {
		s += fmt.Sprintf(" ± %g", p.Tolerance)
	}
	return s
}

// Validate returns an error if a number is not finite or the tolerance is negative.
func (p Affine) Validate() error {
	for _, v := range []float64{p.Scale, p.Offset, p.Tolerance} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("pattern: %v is not finite", p)
		}
	}
	if p.Tolerance < 0 {
		return fmt.Errorf("pattern: the tolerance of %v is negative", p)
	}
	return nil
}

// ElementBytes is 4.
func (p Affine) ElementBytes() uint64 { return 4 }

// Bits returns the bits of At(i).
func (p Affine) Bits(i uint64) uint64 { return uint64(math.Float32bits(p.At(i))) }

// Format returns the float32 as text.
func (p Affine) Format(bits uint64) string {
	return fmt.Sprintf("%g", math.Float32frombits(uint32(bits)))
}

func (p Affine) fill(mem []byte, first uint64) {
	for b := 0; b+4 <= len(mem); b += 4 {
		binary.NativeEndian.PutUint32(mem[b:b+4], math.Float32bits(p.At(first)))
		first++
	}
}

func (p Affine) check(mem []byte, first uint64, r *Report) {
	for b := 0; b+4 <= len(mem); b += 4 {
		got, want := math.Float32frombits(binary.NativeEndian.Uint32(mem[b:b+4])), p.At(first)
		// This condition also counts NaN as wrong.
		if got != want && !(math.Abs(float64(got)-float64(want)) <= p.Tolerance) {
			r.add(Mismatch{first, uint64(math.Float32bits(got))})
		}
		first++
	}
}

func (p Affine) kernel() (string, uint64, []any) {
	return "affine_f32", 0, []any{p.Scale, p.Offset, p.Tolerance}
}
