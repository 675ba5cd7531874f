package driverfacts_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

// This operation of a worker fills memory with a kernel. The test needs this operation because the
// driver's own fills and copies may run without a kernel.
func init() {
	operations["kernel fill"] = with(func(w *worker, c call) (_ reply, err error) {
		k, err := pattern.Load(w.ctx)
		if err != nil {
			return reply{}, err
		}
		defer func() { err = errors.Join(err, k.Close()) }()
		words := pattern.Masked{Offset: uint32(c.Value) * 0x01010101}
		err = k.Fill(w.stream, cuda.DevicePtr(c.Ptr), c.Size/4, words)
		return reply{}, errors.Join(err, w.stream.Synchronize())
	})
}

// kernelFill fills memory with a kernel on the worker's device.
func (p *process) kernelFill(ptr, size uint64, v byte) error {
	p.t.Helper()
	_, err := p.do(call{Op: "kernel fill", Ptr: ptr, Size: size, Value: uint64(v)})
	return err
}

// needPeers skips the test if there is no second device that can access the memory of the first device.
func needPeers(t *testing.T) {
	t.Helper()
	other := device(t, 1)
	needs(t, func() (bool, error) { return other.CanAccessPeer(device(t, 0)) }, "peer access")
}

func TestAnotherDeviceReachesAPoolOnceItIsGranted(t *testing.T) {
	needPools(t)
	needPeers(t)
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

func TestALegacyHandleThatAnotherDeviceOpensIsForItsKernels(t *testing.T) {
	needLegacy(t)
	needPeers(t)
	owner, user := start(t, setting{}), start(t, setting{device: 1})
	ptr, handle := owner.legacy(4*mib, 0x61)
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	r := user.must(call{Op: "range", Ptr: opened})
	assert.Equal(t, opened, r.Ptr)
	assert.EqualValues(t, 4*mib, r.Size)
	assert.True(t, user.is(opened, 4*mib, 0x61))
	require.NoError(t, user.kernelFill(opened, 4*mib, 0x62))
	assert.True(t, owner.is(ptr, 4*mib, 0x62))
	user.must(call{Op: "close opened", Ptr: opened})
}

// Peer access between the contexts changes nothing: still, only kernels of the device that opened the handle can use the
// memory. `legacy_peer` in tests/simcuda/facts checks that.
func TestALegacyHandleThatTheOwnersDeviceOpensIsNotForKernelsOfAnother(t *testing.T) {
	needLegacy(t)
	needPeers(t)
	owner, user := start(t, setting{}), start(t, setting{device: 1})
	ptr, handle := owner.legacy(4*mib, 0x63)
	opened := user.must(call{Op: "open on", Value: 0, Data: handle}).Ptr
	assert.True(t, user.is(opened, 4*mib, 0x63), "a copy works")
	require.ErrorIs(t, user.kernelFill(opened, 4*mib, 0x64), cuda.ErrIllegalAddress)
	assert.True(t, owner.is(ptr, 4*mib, 0x63), "the owner does not notice")
}

func TestTwoDevicesOfOneProcessOpenALegacyHandleAtOnce(t *testing.T) {
	needLegacy(t)
	needPeers(t)
	owner, user := start(t, setting{}), start(t, setting{device: 1})
	ptr, handle := owner.legacy(4*mib, 0x65)
	there := user.must(call{Op: "open on", Value: 0, Data: handle}).Ptr
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	require.NoError(t, user.kernelFill(opened, 4*mib, 0x66))
	user.must(call{Op: "close opened", Ptr: opened})
	assert.True(t, user.is(there, 4*mib, 0x66), "what the other device has open stays")
	assert.True(t, owner.is(ptr, 4*mib, 0x66))
}
