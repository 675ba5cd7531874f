package driverfacts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestAnotherDeviceReachesAPoolOnceItIsGranted(t *testing.T) {
	needPools(t)
	other := device(t, 1)
	can, err := other.CanAccessPeer(device(t, 0))
	require.NoError(t, err)
	if !can {
		t.Skip("the devices cannot reach each other")
	}
	owner, user := start(t, setting{}), start(t, setting{device: 1})
	b := owner.shared(4*mib, 0xa1)
	i := user.imported(b)
	assert.EqualValues(t, cuda.AccessNone, user.must(call{Op: "access", ID: i.pool, Value: 1}).Value)
	assert.ErrorIs(t, user.fill(i.ptr, 16, 0), cuda.ErrInvalidValue)
	user.must(call{Op: "set access", ID: i.pool, Value: 1, Size: uint64(cuda.AccessReadWrite)})
	assert.EqualValues(t, cuda.AccessReadWrite, user.must(call{Op: "access", ID: i.pool, Value: 1}).Value)
	assert.True(t, user.is(i.ptr, i.size, 0xa1))
	require.NoError(t, user.fill(i.ptr, i.size, 0xa2), "written by the other device")
	assert.True(t, owner.is(b.ptr, b.size, 0xa2))
}
