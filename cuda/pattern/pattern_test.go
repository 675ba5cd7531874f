package pattern

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// samples are patterns of every type, as the scenarios use them.
var samples = []Pattern{
	Affine{Scale: 1, Offset: 100},
	Affine{Scale: -1},
	Affine{Scale: 0.001, Offset: 42, Tolerance: 1e-4},
	Affine{Scale: 1e36, Offset: -3}, // becomes infinite after a few elements
	Masked{Scale: 2, Offset: 1337, Mask: 0xDEADBEEF},
	Frame{Seq: 7},
	Frame{Seq: 1<<40 + 3},
	Fibonacci{},
	From(Affine{Scale: 0.1, Offset: 0.7}, 1<<33+5),
	From(Masked{Scale: 2, Offset: 1337, Mask: 0xDEADBEEF}, 1<<31-3),
	From(From(Fibonacci{}, 1000), 1<<20+1),
}

func TestTheFirstElementsAreWhatThePapersSay(t *testing.T) {
	assert.Equal(t, float32(142), Affine{Scale: 1, Offset: 100}.At(42))
	assert.Equal(t, float32(42.123), Affine{Scale: 0.001, Offset: 42}.At(123))
	assert.Equal(t, (2*uint32(5)+1337)^0xDEADBEEF, Masked{2, 1337, 0xDEADBEEF}.At(5))
	assert.Equal(t, uint32(1337-2)^0xDEADBEEF, Masked{2, 1337, 0xDEADBEEF}.At(1<<32-1))
	var fib []uint64
	for i := range uint64(10) {
		fib = append(fib, Fibonacci{}.At(i))
	}
	assert.Equal(t, []uint64{0, 1, 1, 2, 3, 5, 8, 13, 21, 34}, fib)
}

// The pattern of a frame must never change, because other programs compute it too. They can compare
// their results with these values.
func TestFramesHaveTheseElements(t *testing.T) {
	want := map[[2]uint64]uint32{
		{0, 0}: 0, {0, 1}: 0xc80743fb, {1, 0}: 0xf632408f, {1, 1}: 0xd1769956, {1<<32 + 5, 1000}: 0x9b9115ab,
	}
	for k, v := range want {
		assert.Equal(t, v, Frame{Seq: k[0]}.At(k[1]), "frame %d element %d", k[0], k[1])
	}
}

func TestFibonacciWrapsAround(t *testing.T) {
	a, b := big.NewInt(0), big.NewInt(1)
	for range 500 {
		a.Add(a, b)
		a, b = b, a
	}
	want := new(big.Int).And(a, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	assert.Equal(t, want, Fibonacci{}.At(500))
}

func TestTwoFramesDifferInEveryElement(t *testing.T) {
	for _, d := range []uint64{1, 2, 1 << 16, 1<<32 - 1} {
		for i := range uint64(10000) {
			require.NotEqual(t, Frame{Seq: 1000}.At(i), Frame{Seq: 1000 + d}.At(i))
		}
	}
}

func TestAnElementIsTheSameHoweverItIsMade(t *testing.T) {
	for _, p := range samples {
		t.Run(p.String(), func(t *testing.T) {
			const n = 1000
			mem := make([]byte, n*p.ElementBytes())
			p.fill(mem, 3)
			for i := range uint64(n) {
				require.Equal(t, p.Bits(3+i), word(mem, p, i), "element %d", i)
				require.Equal(t, From(p, 3).Bits(i), word(mem, p, i), "element %d", i)
			}
		})
	}
}

func TestAnElementFarOutIsNotRoundedTwice(t *testing.T) {
	// The product is rounded before the sum. A fused operation would give 1 here.
	p := Affine{Scale: 1 + 0x1p-52, Offset: -(1 + 0x1p-51)}
	assert.Zero(t, Affine{Scale: p.Scale * p.Scale, Offset: p.Offset}.At(1))
	assert.Zero(t, affine(p.Scale, p.Scale, p.Offset))
}

func TestPatternsThatNoMemoryCanHaveAreRefused(t *testing.T) {
	for _, p := range []Affine{{Scale: math.NaN()}, {Offset: math.Inf(1)}, {Tolerance: -1}, {Tolerance: math.NaN()}} {
		require.Error(t, p.Validate())
		require.Error(t, Fill(make([]byte, 8), p))
	}
	require.ErrorIs(t, Fill(make([]byte, 7), Frame{}), ErrSize)
	require.ErrorIs(t, Fill(make([]byte, 12), Fibonacci{}), ErrSize)
	require.ErrorIs(t, Fill(make([]byte, 8), From(Frame{}, 1<<53-1)), ErrSize)
	require.ErrorIs(t, Fill(make([]byte, 8), From(From(Frame{}, 1<<63), 1<<63)), ErrSize)
}
