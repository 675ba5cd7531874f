package driverfacts_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAnImportedPointerIsTheExportersMemory(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(3*mib, 0x11)
	i := user.imported(b)
	assert.True(t, user.is(i.ptr, b.size, 0x11))
	require.NoError(t, user.fill(i.ptr, b.size, 0x22))
	assert.True(t, owner.is(b.ptr, b.size, 0x22), "there is one memory")
}

func TestAnImportedPoolCannotBeAllocatedFrom(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0))
	_, err := user.do(call{Op: "allocate", ID: i.pool, Size: mib})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestAnImportedPoolAndPointerCannotBeExportedAgain(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0))
	_, err := user.do(call{Op: "export pool", ID: i.pool})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
	_, err = user.do(call{Op: "export pointer", ID: i.pool, Ptr: i.ptr})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestTheDescriptorIsNotNeededAfterTheImport(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0x33)
	// The worker closes the descriptor after it has imported the pool, and before it imports the pointer.
	pool := user.must(call{Op: "import pool"}, b.fd).ID
	ptr := user.must(call{Op: "import pointer", ID: pool, Data: b.data}).Ptr
	assert.True(t, user.is(ptr, b.size, 0x33))
}

func TestAPoolImportedTwiceIsOneHandleThatIsDestroyedTwice(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b, other := owner.shared(mib, 0x42), owner.shared(mib, 0)
	first := user.must(call{Op: "import pool"}, b.fd)
	second := user.must(call{Op: "import pool"}, b.fd)
	require.Equal(t, first.Value, second.Value, "the same CUmemoryPool")
	ptr := user.must(call{Op: "import pointer", ID: first.ID, Data: b.data}).Ptr
	user.must(call{Op: "free", ID: first.ID, Ptr: ptr})
	user.must(call{Op: "close", ID: first.ID})

	// The worker imports a second pool, and the test checks that the two pools have different handles. If the driver had
	// destroyed the first pool, the second pool could get its handle, and a use of the first pool would end the process.
	require.NotEqual(t, second.Value, user.must(call{Op: "import pool"}, other.fd).Value)
	third := user.must(call{Op: "import pool"}, b.fd)
	require.Equal(t, second.Value, third.Value, "it is still the same CUmemoryPool")
	ptr = user.must(call{Op: "import pointer", ID: second.ID, Data: b.data}).Ptr
	assert.True(t, user.is(ptr, b.size, 0x42))
	user.must(call{Op: "free", ID: second.ID, Ptr: ptr})
	user.must(call{Op: "close", ID: second.ID})
	user.must(call{Op: "close", ID: third.ID})
}

func TestAnImportedPoolIsNotDestroyedWhileAPointerIsMapped(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0x24))
	_, err := user.do(call{Op: "close", ID: i.pool})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
	assert.True(t, user.is(i.ptr, i.size, 0x24), "nothing happened to it")
	user.must(call{Op: "free", ID: i.pool, Ptr: i.ptr})
	user.must(call{Op: "close", ID: i.pool})
}

func TestAnImportedPoolTellsNothingOfItself(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	pool := user.must(call{Op: "import pool"}, owner.shared(mib, 0).fd).ID
	for _, op := range []string{"reserved", "trim"} {
		_, err := user.do(call{Op: op, ID: pool})
		assert.ErrorIs(t, err, cuda.ErrInvalidValue, op)
	}
}

func TestExportDataWorksAfterItsAllocationWasFreed(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0x57)
	owner.must(call{Op: "free", ID: b.pool, Ptr: b.ptr})
	i := user.imported(b)
	ptr := owner.must(call{Op: "allocate", ID: b.pool, Size: b.size}).Ptr
	require.Equal(t, b.ptr, ptr, "the address is used again")
	require.NoError(t, owner.fill(ptr, b.size, 0x75))
	assert.True(t, user.is(i.ptr, i.size, 0x75), "the driver does not tell old data from new")
}

func TestAPointerImportedTwiceIsUnmappedByTheFirstFree(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0))
	again := user.must(call{Op: "import pointer", ID: i.pool, Data: i.data}).Ptr
	require.Equal(t, i.ptr, again)
	user.must(call{Op: "free", ID: i.pool, Ptr: i.ptr})
	_, err := user.do(call{Op: "is", Ptr: again, Size: 16})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue, "it is gone for both")
	_, err = user.do(call{Op: "free", ID: i.pool, Ptr: again})
	assert.Error(t, err, "the second free")
}

func TestAPointerCanBeImportedAgainAfterItWasFreed(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0x44))
	user.must(call{Op: "free", ID: i.pool, Ptr: i.ptr})
	ptr := user.must(call{Op: "import pointer", ID: i.pool, Data: i.data}).Ptr
	assert.True(t, user.is(ptr, i.size, 0x44))
}

func TestForgedExportDataIsRefused(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0)
	pool := user.must(call{Op: "import pool"}, b.fd).ID
	_, err := user.do(call{Op: "import pointer", ID: pool, Data: make([]byte, 64)})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue, "all zero")
	corrupt := append([]byte(nil), b.data...)
	for i := range corrupt {
		corrupt[i] ^= 0xff
	}
	_, err = user.do(call{Op: "import pointer", ID: pool, Data: corrupt})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue, "corrupt")
}

func TestADescriptorOfSomethingElseIsErrUnknown(t *testing.T) {
	needPools(t)
	user := start(t, setting{})
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	_, err = user.do(call{Op: "import pool"}, int(f.Fd()))
	assert.ErrorIs(t, err, cuda.ErrUnknown)
	fd, err := unix.MemfdCreate("not a pool", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = user.do(call{Op: "import pool"}, fd)
	assert.ErrorIs(t, err, cuda.ErrUnknown)
}

func TestAnImportedPoolCannotBeReadOnly(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	i := user.imported(owner.shared(mib, 0))
	_, err := user.do(call{Op: "set access", ID: i.pool, Size: uint64(cuda.AccessReadOnly)})
	assert.ErrorIs(t, err, cuda.ErrNotSupported)
}

func TestManyThreadsImportAndLetGoUnderOneLock(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	var fds []int
	var data []byte
	for range 8 {
		b := owner.shared(mib, 0)
		fds, data = append(fds, b.fd), append(data, b.data...)
	}
	user.must(call{Op: "import and free from many threads", Value: 20, Data: data}, fds...)
}
