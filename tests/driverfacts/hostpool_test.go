package driverfacts_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAHostPoolIsReadAndWrittenByTheCPUOfBothProcesses(t *testing.T) {
	d := device(t, 0)
	needs(t, d.SupportsHostNUMAPools, "pools on the host")
	node, err := d.HostNUMANode()
	require.NoError(t, err)
	owner, user := start(t, setting{}), start(t, setting{namespaces: true})
	const size = 2 * mib
	pool := owner.must(call{Op: "new pool", Data: []byte(strconv.Itoa(node))}).ID
	b := block{pool: pool, size: size, fd: owner.mustFD(call{Op: "export pool", ID: pool})}
	b.ptr = owner.must(call{Op: "allocate", ID: pool, Size: size}).Ptr
	b.data = owner.must(call{Op: "export pointer", ID: pool, Ptr: b.ptr}).Data
	owner.must(call{Op: "cpu fill", Ptr: b.ptr, Size: size, Value: 0x91})

	i := user.imported(b)
	assert.True(t, user.must(call{Op: "cpu is", Ptr: i.ptr, Size: size, Value: 0x91}).OK)
	user.must(call{Op: "cpu fill", Ptr: i.ptr, Size: size, Value: 0x92})
	assert.True(t, owner.must(call{Op: "cpu is", Ptr: b.ptr, Size: size, Value: 0x92}).OK)

	assert.EqualValues(t, cuda.AccessNone, user.must(call{Op: "access", ID: i.pool}).Value, "the GPU has none before it is granted")
	user.must(call{Op: "set access", ID: i.pool, Size: uint64(cuda.AccessReadWrite)})
	assert.EqualValues(t, cuda.AccessReadWrite, user.must(call{Op: "access", ID: i.pool}).Value)
	require.NoError(t, user.fill(i.ptr, size, 0x93))
	_, err = user.do(call{Op: "is", Ptr: i.ptr, Size: size})
	assert.ErrorIs(t, err, cuda.ErrInvalidValue, "a copy that says that it is memory of the device")
	assert.True(t, owner.must(call{Op: "cpu is", Ptr: b.ptr, Size: size, Value: 0x93}).OK)
}
