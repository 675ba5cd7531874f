package mempool

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

func newHost(t testing.TB, maxBytes uint64) *hostBacking {
	t.Helper()
	a, err := newHostBacking(PoolSpec{Name: "p", Kind: Host, MaxBytes: maxBytes}, hostmem.New())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, a.Close()) })
	return a.(*hostBacking)
}

func TestHostMemoryIsOnNoDevice(t *testing.T) {
	assert.NoError(t, Host.Probe(""))
	assert.ErrorIs(t, Host.Probe("0"), ErrInvalid)
	_, err := NewBacking(PoolSpec{Name: "p", Kind: Host, Device: "0", MaxBytes: 1 << 20}, hostmem.New())
	assert.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, NoDevice, newHost(t, 1).Device())
}

func TestAMemfdTooLargeForTheMachineIsATypedError(t *testing.T) {
	_, err := newHostBacking(PoolSpec{Name: "p", MaxBytes: math.MaxInt64}, hostmem.New())
	assert.ErrorIs(t, err, ErrOutOfMemory)
	_, err = mapHost(nil, math.MaxUint64, unix.PROT_READ)
	assert.ErrorIs(t, err, ErrInvalid)
	for errno, want := range map[error]error{unix.ENOMEM: ErrOutOfMemory, unix.EMFILE: ErrLimit, unix.EFBIG: ErrInvalid, unix.ENOSYS: ErrUnavailable, unix.EIO: ErrInternal} {
		assert.ErrorIs(t, HostError("call", errno), want)
	}
}

// stopping is a context whose Err returns nil n times, and then errStopped.
type stopping struct {
	context.Context
	asked, n int
}

var errStopped = errors.New("stopped")

func (s *stopping) Err() error {
	if s.asked++; s.asked <= s.n {
		return nil
	}
	return errStopped
}

func (s *stopping) Value(any) any { return nil }

func TestALargeAllocationThatIsGivenUpGivesBackWhatItTook(t *testing.T) {
	a := newHost(t, 3*hostPart)
	ctx := &stopping{Context: t.Context(), n: 2}
	_, err := a.Allocate(ctx, 3*hostPart)
	require.ErrorIs(t, err, errStopped)
	assert.Positive(t, ctx.asked-ctx.n, "it was asked before each part")
	assert.Equal(t, []span{{0, 3 * hostPart}}, a.free)
	st := new(unix.Stat_t)
	require.NoError(t, unix.Fstat(int(a.file.Fd()), st))
	assert.Zero(t, st.Blocks)
}

func TestTheSizeOfAMemfdIsSealed(t *testing.T) {
	a := newHost(t, 4096)
	for _, size := range []int64{0, 8192} {
		assert.ErrorIs(t, a.file.Truncate(size), unix.EPERM, "it could make a mapping elsewhere fault")
	}
}

func TestFreedPagesComeBackAsZeros(t *testing.T) {
	a := newHost(t, 8192)
	m, err := a.Allocate(t.Context(), 4096)
	require.NoError(t, err)
	require.NoError(t, m.Fill(0, 4096, 0xff))
	require.NoError(t, m.Synchronize())
	require.NoError(t, m.Free())
	m, err = a.Allocate(t.Context(), 4096)
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 4096), m.Bytes())
	require.NoError(t, m.Free())
}

// The ranges that the test takes never overlap. When the test has put all ranges back, the backing's free memory is one range again.
func TestHostRangesDoNotOverlapAndJoinAgain(t *testing.T) {
	const pages = 64
	a := newHost(t, pages*4096)
	random := rand.New(rand.NewPCG(3, 4))
	type taken struct{ off, size uint64 }
	var all []taken
	used := uint64(0)
	for range 5000 {
		if random.IntN(2) == 0 {
			size := (random.Uint64N(8) + 1) * 4096
			off, err := a.take(size)
			if err != nil {
				require.ErrorIs(t, err, ErrOutOfMemory)
				continue
			}
			for _, o := range all {
				require.True(t, off+size <= o.off || o.off+o.size <= off, "overlap")
			}
			require.LessOrEqual(t, off+size, uint64(pages*4096))
			all = append(all, taken{off, size})
			used += size
		} else if len(all) > 0 {
			i := random.IntN(len(all))
			a.put(span(all[i]))
			used -= all[i].size
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
		require.Equal(t, used, a.used)
		for i := 1; i < len(a.free); i++ {
			require.Less(t, a.free[i-1].off+a.free[i-1].size, a.free[i].off, "sorted, and never adjacent")
		}
	}
	for _, o := range all {
		a.put(span(o))
	}
	assert.Equal(t, []span{{0, pages * 4096}}, a.free)
}

func TestAHostAllocationThatFailsTakesNothing(t *testing.T) {
	a := newHost(t, 8192)
	m, err := a.Allocate(t.Context(), 4096)
	require.NoError(t, err)
	file := a.file
	a.file, err = os.Open(os.DevNull) // fallocate fails on this file
	require.NoError(t, err)
	_, err = a.Allocate(t.Context(), 4096)
	assert.ErrorIs(t, err, ErrInternal)
	assert.ErrorIs(t, m.Free(), ErrInternal)
	n, err := a.InUse()
	require.NoError(t, err)
	assert.EqualValues(t, 4096, n, "what could not be freed is in use still")
	require.NoError(t, a.file.Close())
	a.file = file
	assert.NoError(t, m.Free())
	n, _ = a.InUse()
	assert.Zero(t, n)
}
