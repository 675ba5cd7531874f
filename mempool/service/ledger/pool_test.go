package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestABlockThatCrashesTheDriverOfItsReadersIsRefused(t *testing.T) {
	for kind, largest := range map[mempool.Kind]uint64{mempool.Device: 4 << 30, mempool.Pinned: 4 << 30, mempool.VMM: 60 << 30} {
		p := &Pool{Info: mempool.PoolInfo{Name: "p", Kind: kind, MaxBytes: 64 << 30}, Granularity: 512}
		for _, n := range []uint64{1, largest - 100<<20, largest} {
			size, err := p.BlockSize(n)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, size, n)
			if kind != mempool.VMM {
				assert.LessOrEqual(t, size, largest, "the size class of %d bytes", n)
			}
		}
		if kind != mempool.VMM {
			_, err := p.BlockSize(largest + 1)
			require.ErrorIs(t, err, mempool.ErrLimit)
			require.ErrorContains(t, err, "use a pool of kind vmm, or host for memory of the CPU")
		}
	}
}
