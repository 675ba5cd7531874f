package sizeclass

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSizeClassesWasteAtMostAnEighth(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		granularity := uint64(1) << random.IntN(22)
		n := random.Uint64N(math.MaxInt64) >> random.IntN(63)
		size := Of(n, granularity)
		assert.GreaterOrEqual(t, size, n)
		assert.Zero(t, size%granularity)
		assert.Equal(t, size, Of(size, granularity), "a class is its own class")
		if n > Least && granularity <= n/8 {
			assert.LessOrEqual(t, size-n, n/8+1)
		}
		if t.Failed() {
			t.Fatalf("%d bytes in steps of %d: %d", n, granularity, size)
		}
	}
}

func TestSizeClassesAtTheEdges(t *testing.T) {
	for _, c := range []struct{ n, granularity, want uint64 }{
		{0, 1, Least},
		{1, 4096, 4096},
		{Least, 1, Least},
		{Least + 1, 1, Least + 64},
		{4096, 4096, 4096},
		{4097, 4096, 8192},
		{1 << 20, 4096, 1 << 20},
		{1<<20 + 1, 4096, 1<<20 + 128<<10},
		{math.MaxInt64, 1, 1 << 63},
	} {
		assert.Equal(t, c.want, Of(c.n, c.granularity), "%d in steps of %d", c.n, c.granularity)
	}
}
