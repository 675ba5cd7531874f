package pattern

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// word returns element i of memory.
func word(mem []byte, p Pattern, i uint64) uint64 {
	if p.ElementBytes() == 8 {
		return binary.NativeEndian.Uint64(mem[8*i:])
	}
	return uint64(binary.NativeEndian.Uint32(mem[4*i:]))
}

// damage changes elements so that they are wrong for every pattern.
func damage(mem []byte, p Pattern, indices ...uint64) {
	for _, i := range indices {
		mem[(i+1)*p.ElementBytes()-1] ^= 0x7f
	}
}

func indices(r Report) (all []uint64) {
	for _, m := range r.First {
		all = append(all, m.Index)
	}
	return all
}

func TestMemoryOfTheHostIsFilledAndVerified(t *testing.T) {
	for _, p := range samples {
		t.Run(p.String(), func(t *testing.T) {
			n := uint64(3*partBytes+8)/p.ElementBytes() + 1
			mem := make([]byte, n*p.ElementBytes())
			require.NoError(t, Fill(mem, p))
			for _, i := range []uint64{0, 1, n / 2, partBytes / p.ElementBytes(), n - 1} {
				require.Equal(t, p.Bits(i), word(mem, p, i))
			}
			r, err := Verify(mem, p)
			require.NoError(t, err)
			require.NoError(t, r.Err())
			assert.Equal(t, n, r.Elements)

			wrong := []uint64{0, 17, n / 3, n / 2, n - 1}
			damage(mem, p, wrong...)
			r, err = Verify(mem, p)
			require.NoError(t, err)
			assert.EqualValues(t, len(wrong), r.Count)
			assert.Equal(t, wrong, indices(r))
			for _, m := range r.First {
				assert.Equal(t, word(mem, p, m.Index), m.Got)
			}
		})
	}
}

func TestAReportKeepsTheLowestMismatches(t *testing.T) {
	mem := make([]byte, 5*partBytes)
	r, err := Verify(mem, Affine{Offset: 1})
	require.NoError(t, err)
	assert.EqualValues(t, len(mem)/4, r.Count)
	assert.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7}, indices(r))
	assert.EqualError(t, r.Err(), "5242880 of 5242880 elements differ from 0·i + 1: [0] is 0, not 1, [1] is 0, not 1, [2] is 0, not 1, …")
}

func TestATolerancesEdge(t *testing.T) {
	p := Affine{Scale: 0.001, Offset: 42, Tolerance: 1e-4}
	mem := make([]byte, 4*3)
	for i, d := range []float64{0.9e-4, -0.9e-4, 1.1e-4} {
		binary.NativeEndian.PutUint32(mem[4*i:], math.Float32bits(float32(float64(p.At(uint64(i)))+d)))
	}
	r, err := Verify(mem, p)
	require.NoError(t, err)
	assert.Equal(t, []uint64{2}, indices(r))
}

func TestANaNIsWrongAndANegativeZeroIsNot(t *testing.T) {
	mem := make([]byte, 8)
	binary.NativeEndian.PutUint32(mem, math.Float32bits(float32(math.NaN())))
	binary.NativeEndian.PutUint32(mem[4:], 1<<31)
	for _, tolerance := range []float64{0, 1e30} {
		r, err := Verify(mem, Affine{Tolerance: tolerance})
		require.NoError(t, err)
		assert.Equal(t, []uint64{0}, indices(r))
	}
}

func TestATransformChangesEveryElement(t *testing.T) {
	mem := make([]byte, 2*partBytes+4)
	require.NoError(t, Fill(mem, Affine{Scale: 1, Offset: 100}))
	require.NoError(t, Double.Apply(mem))
	r, err := Verify(mem, Affine{Scale: 2, Offset: 200})
	require.NoError(t, err)
	require.NoError(t, r.Err())
	require.ErrorIs(t, Double.Apply(mem[:5]), ErrSize)
	require.Error(t, Transform{Scale: math.NaN()}.Apply(mem))
}

func BenchmarkHost(b *testing.B) {
	mem := make([]byte, 256<<20)
	for _, p := range []Pattern{Affine{Scale: 1, Offset: 100}, Masked{2, 1337, 0xDEADBEEF}, Frame{Seq: 1}, Fibonacci{}} {
		require.NoError(b, Fill(mem, p))
		b.Run("Verify/"+p.String(), func(b *testing.B) {
			b.SetBytes(int64(len(mem)))
			for b.Loop() {
				r, err := Verify(mem, p)
				require.NoError(b, err)
				require.NoError(b, r.Err())
			}
		})
	}
}
