package driverfacts_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAConsumerOutlivesTheExporter(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0x55))
	owner.kill()
	assert.True(t, user.is(i.ptr, i.size, 0x55))
	require.NoError(t, user.fill(i.ptr, i.size, 0x66))
	assert.True(t, user.is(i.ptr, i.size, 0x66))
}

func TestADescriptorOutlivesTheExporterInAProcessWithoutCUDA(t *testing.T) {
	needPools(t)
	owner, keeper := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0x77)
	held := keeper.must(call{Op: "hold"}, b.fd).ID
	forget(t, b.fd)
	owner.kill()

	user := start(t, setting{})
	b.fd = keeper.mustFD(call{Op: "give", ID: held})
	i := user.imported(b)
	assert.True(t, user.is(i.ptr, i.size, 0x77))
}

func TestMemoryReturnsWhenTheLastDescriptorGoes(t *testing.T) {
	needPools(t)
	witness, keeper, owner := start(t, setting{}), start(t, setting{}), start(t, setting{})
	free := func() uint64 { return witness.must(call{Op: "free memory"}).Size }
	before := free()
	size := before / 4 / mib * mib // more memory than other programs take or give back meanwhile
	b := owner.shared(size, 1)
	require.Less(t, free(), before-size/2, "one process sees what another allocates")
	keeper.must(call{Op: "hold"}, b.fd)
	forget(t, b.fd)
	owner.kill()
	time.Sleep(500 * time.Millisecond)
	assert.Less(t, free(), before-size/2, "the keeper's descriptor keeps the memory")
	require.NoError(t, keeper.exit())
	assert.Eventually(t, func() bool { return free() > before-size/2 }, patience, 100*time.Millisecond)
}

func TestTheExporterOutlivesAConsumer(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0x12)
	i := user.imported(b)
	require.NoError(t, user.fill(i.ptr, i.size, 0x34))
	user.kill()
	assert.True(t, owner.is(b.ptr, b.size, 0x34))
	owner.must(call{Op: "free", ID: b.pool, Ptr: b.ptr})
	owner.must(call{Op: "close", ID: b.pool})
}

// forget replaces the test's copy of a descriptor with a descriptor of /dev/null, so that only a worker still has the
// original.
func forget(t *testing.T, fd int) {
	t.Helper()
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	require.NoError(t, unix.Dup3(null, fd, unix.O_CLOEXEC))
}
