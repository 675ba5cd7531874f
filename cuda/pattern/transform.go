package pattern

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Transform changes float32 elements in place. An element x becomes float32(Scale·x + Offset). The computation is in float64, and its results
// are rounded in the same way as those of [Affine].
type Transform struct {
	Scale  float64 `json:"scale"`
	Offset float64 `json:"offset"`
}

// Double is the transform x·2.
var Double = Transform{Scale: 2}

// At returns the transformed value of x.
func (t Transform) At(x float32) float32 { return affine(t.Scale, float64(x), t.Offset) }

func (t Transform) String() string { return fmt.Sprintf("%g·x + %g", t.Scale, t.Offset) }

// Validate returns an error if Scale or Offset is not finite.
func (t Transform) Validate() error {
	return Affine{Scale: t.Scale, Offset: t.Offset}.Validate()
}

// Apply transforms mem with all cores. mem must hold whole elements.
//
// Errors: [ErrSize].
func (t Transform) Apply(mem []byte) error {
	n, err := elements(Affine{Scale: t.Scale, Offset: t.Offset}, len(mem))
	if err != nil {
		return err
	}
	split(mem, n, 4, func(part []byte, _ uint64) {
		for b := 0; b+4 <= len(part); b += 4 {
			x := math.Float32frombits(binary.NativeEndian.Uint32(part[b : b+4]))
			binary.NativeEndian.PutUint32(part[b:b+4], math.Float32bits(t.At(x)))
		}
	})
	return nil
}
