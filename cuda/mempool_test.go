package cuda_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

const mib = 1 << 20

func TestAPoolAllocatesAndCounts(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	p := memPool(t, c, cuda.MemPoolSpec{ReleaseThreshold: 64 * mib})
	threshold, err := p.ReleaseThreshold()
	require.NoError(t, err)
	assert.EqualValues(t, 64*mib, threshold)

	ptr, err := p.Alloc(mib, s)
	require.NoError(t, err)
	used, err := p.UsedMem()
	require.NoError(t, err)
	assert.EqualValues(t, mib, used)
	reserved, err := p.ReservedMem()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, reserved, used)

	require.NoError(t, s.Memset8(ptr, 0x5a, mib))
	require.NoError(t, p.Free(ptr, s))
	require.NoError(t, s.Synchronize())
	used, err = p.UsedMem()
	require.NoError(t, err)
	assert.Zero(t, used)
	high, err := p.UsedMemHigh()
	require.NoError(t, err)
	assert.EqualValues(t, mib, high)
	high, err = p.ReservedMemHigh()
	require.NoError(t, err)
	assert.GreaterOrEqual(t, high, reserved)
	require.NoError(t, p.SetReleaseThreshold(0))
	require.NoError(t, p.TrimTo(0))
}

func TestAPoolTakesTheLegacyStream(t *testing.T) {
	c := context(t)
	p := memPool(t, c, cuda.MemPoolSpec{})
	ptr, err := p.Alloc(1000, nil)
	require.NoError(t, err)
	require.NoError(t, p.Free(ptr, nil))
	_, err = p.Alloc(0, nil)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestAnExportedDescriptorIsClosedOnExec(t *testing.T) {
	c := context(t)
	p := memPool(t, c, cuda.MemPoolSpec{Exportable: true})
	assert.False(t, p.Imported())
	fd, err := p.ExportFD()
	require.NoError(t, err)
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.NotZero(t, flags&unix.FD_CLOEXEC)
}

func TestAPoolThatIsNotExportableIsNotExported(t *testing.T) {
	c := context(t)
	p := memPool(t, c, cuda.MemPoolSpec{})
	fd, err := p.ExportFD()
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
	assert.Equal(t, -1, fd)
}

func TestPointersAreImportedIntoImportedPoolsOnly(t *testing.T) {
	c := context(t)
	p := memPool(t, c, cuda.MemPoolSpec{Exportable: true})
	_, err := p.ImportPtr(cuda.PtrExportData{})
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
	_, err = c.ImportMemPool(-1)
	require.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestAClosedPoolAnswersErrClosed(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsMemPools)
	p, err := c.NewMemPool(cuda.MemPoolSpec{})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Alloc(1, nil)
	require.ErrorIs(t, err, cuda.ErrClosed)
	require.ErrorIs(t, p.TrimTo(0), cuda.ErrClosed)
	_, err = p.UsedMem()
	require.ErrorIs(t, err, cuda.ErrClosed)
}

func TestAPoolIsClosedUnderItsUsers(t *testing.T) {
	c := context(t)
	needs(t, c.Device().SupportsMemPools)
	p, err := c.NewMemPool(cuda.MemPoolSpec{ReleaseThreshold: 64 * mib})
	require.NoError(t, err)
	s := stream(t, c)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				ptr, err := p.Alloc(4096, s)
				if err != nil {
					assert.ErrorIs(t, err, cuda.ErrClosed)
					return
				}
				if err := p.Free(ptr, s); err != nil {
					assert.ErrorIs(t, err, cuda.ErrClosed)
					return
				}
			}
		})
	}
	require.NoError(t, s.Synchronize())
	require.NoError(t, p.Close())
	wg.Wait()
}

func TestAPoolIsOpenToItsOwnDevice(t *testing.T) {
	c := context(t)
	p := memPool(t, c, cuda.MemPoolSpec{Location: cuda.DeviceLocation(c.Device())})
	flags, err := p.Access(c.Device())
	require.NoError(t, err)
	assert.Equal(t, cuda.AccessReadWrite, flags)
	require.NoError(t, p.SetAccess(c.Device(), cuda.AccessReadWrite))
}
