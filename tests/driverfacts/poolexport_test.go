package driverfacts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAPointerExportedTwiceGivesTheSameData(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	b := owner.shared(mib, 0)
	assert.Equal(t, b.data, owner.must(call{Op: "export pointer", ID: b.pool, Ptr: b.ptr}).Data)
}

func TestTheNextAllocationAtAnAddressHasOtherDataOnlyIfTheMemoryWentBack(t *testing.T) {
	needPools(t)
	for name, threshold := range map[string]uint64{"went back": 0, "kept": ^uint64(0)} {
		t.Run(name, func(t *testing.T) {
			owner := start(t, setting{})
			pool := owner.must(call{Op: "new pool", Value: threshold}).ID
			owner.mustFD(call{Op: "export pool", ID: pool})
			first := owner.must(call{Op: "allocate", ID: pool, Size: mib}).Ptr
			before := owner.must(call{Op: "export pointer", ID: pool, Ptr: first}).Data
			owner.must(call{Op: "free", ID: pool, Ptr: first})
			second := owner.must(call{Op: "allocate", ID: pool, Size: mib}).Ptr
			require.Equal(t, first, second, "the address is used again")
			after := owner.must(call{Op: "export pointer", ID: pool, Ptr: second}).Data
			if threshold == 0 {
				assert.NotEqual(t, before, after)
			} else {
				assert.Equal(t, before, after, "two allocations, one name")
			}
		})
	}
}

func TestPointersAreExportedOnceThePoolIs(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	pool := owner.must(call{Op: "new pool"}).ID
	ptr := owner.must(call{Op: "allocate", ID: pool, Size: mib}).Ptr
	_, err := owner.do(call{Op: "export pointer", ID: pool, Ptr: ptr})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
	owner.mustFD(call{Op: "export pool", ID: pool})
	owner.must(call{Op: "export pointer", ID: pool, Ptr: ptr})
}

func TestAnInteriorPointerCannotBeExported(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	b := owner.shared(mib, 0)
	_, err := owner.do(call{Op: "export pointer", ID: b.pool, Ptr: b.ptr + 4*kib})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue)
}

func TestExportDataOfNeighboursCanBeGuessed(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	b := owner.shared(mib, 0)
	next := owner.must(call{Op: "allocate", ID: b.pool, Size: b.size}).Ptr
	data := owner.must(call{Op: "export pointer", ID: b.pool, Ptr: next}).Data
	var different int
	for i := range data {
		if data[i] != b.data[i] {
			different++
		}
	}
	assert.Positive(t, different)
	assert.Less(t, different, 16, "of 64 bytes")
}

func TestAPoolHoldsNoMoreThanItsBound(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	pool := owner.must(call{Op: "new pool", Size: 64 * mib}).ID
	_, err := owner.do(call{Op: "allocate", ID: pool, Size: 256 * mib})
	assert.ErrorIs(t, err, cuda.ErrOutOfMemory)
	for range 64 {
		owner.must(call{Op: "allocate", ID: pool, Size: mib})
	}
	_, err = owner.do(call{Op: "allocate", ID: pool, Size: mib})
	assert.ErrorIs(t, err, cuda.ErrOutOfMemory)
	small := owner.must(call{Op: "new pool", Size: 1000}).ID
	owner.must(call{Op: "allocate", ID: small, Size: 2 * mib}) // the limit of the pool is rounded up
}

func TestTrimmingAPoolReturnsItsMemory(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	pool := owner.must(call{Op: "new pool", Value: ^uint64(0)}).ID
	var ptrs []uint64
	for range 16 {
		ptrs = append(ptrs, owner.must(call{Op: "allocate", ID: pool, Size: 32 * mib}).Ptr)
	}
	before := owner.must(call{Op: "reserved", ID: pool}).Size
	require.GreaterOrEqual(t, before, uint64(512*mib))
	for _, ptr := range ptrs {
		owner.must(call{Op: "free", ID: pool, Ptr: ptr})
	}
	assert.Equal(t, before, owner.must(call{Op: "reserved", ID: pool}).Size, "the release threshold keeps it")
	owner.must(call{Op: "trim", ID: pool})
	assert.LessOrEqual(t, owner.must(call{Op: "reserved", ID: pool}).Size, uint64(32*mib))
}

func TestMemoryFreedUnderAConsumerShowsItTheNextOwnersData(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0x11)
	i := user.imported(b)
	owner.must(call{Op: "free", ID: b.pool, Ptr: b.ptr})
	ptr := owner.must(call{Op: "allocate", ID: b.pool, Size: b.size}).Ptr
	require.Equal(t, b.ptr, ptr, "the address is used again")
	require.NoError(t, owner.fill(ptr, b.size, 0x99))
	assert.True(t, user.is(i.ptr, i.size, 0x99), "nobody told the consumer")
}

func TestAProcessHolds200PoolsAndTheirDescriptors(t *testing.T) {
	needPools(t)
	owner := start(t, setting{})
	for range 200 {
		pool := owner.must(call{Op: "new pool"}).ID
		owner.mustFD(call{Op: "export pool", ID: pool})
	}
}

func TestAPoolIsOpenToItsOwnDeviceAlways(t *testing.T) {
	needPools(t)
	owner, user := start(t, setting{}), start(t, setting{})
	b := owner.shared(mib, 0)
	i := user.imported(b)
	assert.EqualValues(t, cuda.AccessReadWrite, user.must(call{Op: "access", ID: i.pool, Value: 0}).Value)
	for _, flags := range []cuda.AccessFlags{cuda.AccessNone, cuda.AccessReadOnly} {
		_, err := owner.do(call{Op: "set access", ID: b.pool, Size: uint64(flags)})
		assert.Error(t, err, "and it cannot be less")
	}
}
