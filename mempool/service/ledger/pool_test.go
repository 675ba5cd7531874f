package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestABlockThatCrashesTheDriverOfItsReadersIsRefused(t *testing.T) {
	for kind, largest := range map[mempool.Kind]uint64{mempool.Device: 60 << 30, mempool.Pinned: 4 << 30, mempool.VMM: 60 << 30} {
		p := &Pool{Info: mempool.PoolInfo{Name: "p", Kind: kind, MaxBytes: 64 << 30}, Granularity: 512}
		for _, n := range []uint64{1, largest - 100<<20, largest} {
			size, err := p.BlockSize(n)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, size, n)
			if kind == mempool.Pinned {
				assert.LessOrEqual(t, size, largest, "the size class of %d bytes", n)
			}
		}
		if kind == mempool.Pinned {
			_, err := p.BlockSize(largest + 1)
			require.ErrorIs(t, err, mempool.ErrLimit)
			require.ErrorContains(t, err, "use a pool of kind host for memory of the CPU, or device or vmm for memory of a GPU")
		}
	}
}

func TestABlockThatIsInNoMemoryPoolHasWholePages(t *testing.T) {
	for _, most := range []uint64{64 << 30, 4<<30 + 4<<20} {
		p := &Pool{Info: mempool.PoolInfo{Name: "p", Kind: mempool.Device, MaxBytes: most}, Granularity: 512}
		size, err := p.BlockSize(4<<30 + 1)
		require.NoError(t, err)
		assert.Zero(t, size%(2<<20))
		size, err = p.BlockSize(1000)
		require.NoError(t, err)
		assert.Less(t, size, uint64(2<<20))
	}
}
