package driverfacts_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// These operations of a worker use legacy memory.
func init() {
	operations["malloc"] = with(func(w *worker, c call) (reply, error) {
		ptr, err := w.ctx.Malloc(c.Size)
		return reply{Ptr: uint64(ptr)}, err
	})
	operations["mfree"] = with(func(w *worker, c call) (reply, error) {
		return reply{}, w.ctx.MFree(cuda.DevicePtr(c.Ptr))
	})
	operations["handle"] = with(func(w *worker, c call) (reply, error) {
		h, err := w.ctx.IPCMemHandle(cuda.DevicePtr(c.Ptr))
		return reply{Data: h[:]}, err
	})
	operations["open"] = with(func(w *worker, c call) (reply, error) {
		ptr, err := w.ctx.OpenIPCMem(cuda.IPCMemHandle(c.Data))
		return reply{Ptr: uint64(ptr)}, err
	})
	// This operation opens a handle in the primary context of a device, which may be another device than the worker's
	// device.
	operations["open on"] = with(func(w *worker, c call) (reply, error) {
		d, err := cuda.DeviceAt(int(c.Value))
		if err != nil {
			return reply{}, err
		}
		ctx, err := d.Retain()
		if err != nil {
			return reply{}, err
		}
		w.keep(ctx)
		ptr, err := ctx.OpenIPCMem(cuda.IPCMemHandle(c.Data))
		return reply{Ptr: uint64(ptr)}, err
	})
	operations["close opened"] = with(func(w *worker, c call) (reply, error) {
		return reply{}, w.ctx.CloseIPCMem(cuda.DevicePtr(c.Ptr))
	})
	// This operation opens a handle in a second context. Then it asks for the address range in the second context and
	// in the primary context.
	operations["open beside"] = with(func(w *worker, c call) (r reply, err error) {
		second, err := w.ctx.Device().NewContext()
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, second.Close()) }()
		ptr, err := second.OpenIPCMem(cuda.IPCMemHandle(c.Data))
		if err != nil {
			return r, err
		}
		_, r.Size, err = second.AddressRange(ptr)
		_, _, elsewhere := w.ctx.AddressRange(ptr)
		r.OK = !errors.Is(elsewhere, cuda.ErrNotFound)
		return r, errors.Join(err, second.CloseIPCMem(ptr))
	})
	operations["range"] = with(func(w *worker, c call) (reply, error) {
		base, size, err := w.ctx.AddressRange(cuda.DevicePtr(c.Ptr))
		return reply{Ptr: uint64(base), Size: size}, err
	})
}

// legacy makes an allocation in the worker, fills the allocation with v, and returns its address and its handle.
func (p *process) legacy(size uint64, v byte) (ptr uint64, handle []byte) {
	p.t.Helper()
	ptr = p.must(call{Op: "malloc", Size: size}).Ptr
	require.NoError(p.t, p.fill(ptr, size, v))
	return ptr, p.must(call{Op: "handle", Ptr: ptr}).Data
}

func TestALegacyHandleOpensInAnotherProcess(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	ptr, handle := owner.legacy(4*mib, 0x31)
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	assert.True(t, user.is(opened, 4*mib, 0x31))
	require.NoError(t, user.fill(opened, 4*mib, 0x32))
	assert.True(t, owner.is(ptr, 4*mib, 0x32))
	user.must(call{Op: "close opened", Ptr: opened})
}

func TestALegacyHandleOpensAtTheBeginningOfTheAllocation(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	for _, size := range []uint64{64 * kib, 64 * kib, 4 * mib} { // several small allocations share one block of the driver
		ptr, handle := owner.legacy(size, 0x01)
		require.NoError(t, owner.fill(ptr+4*kib, 4*kib, 0x02))
		interior := owner.must(call{Op: "handle", Ptr: ptr + 4*kib}).Data
		require.Equal(t, handle, interior, "a handle does not say where it points")
		opened := user.must(call{Op: "open", Data: interior}).Ptr
		assert.True(t, user.is(opened, 4*kib, 0x01))
		assert.True(t, user.is(opened+4*kib, 4*kib, 0x02), "the offset has to travel beside it")
		r := user.must(call{Op: "range", Ptr: opened + 4*kib})
		assert.Equal(t, opened, r.Ptr)
		assert.Equal(t, size, r.Size)
	}
}

func TestALegacyHandleIsNotOpenedInItsOwnProcess(t *testing.T) {
	needLegacy(t)
	owner := start(t, setting{})
	_, handle := owner.legacy(4*mib, 0)
	_, err := owner.do(call{Op: "open", Data: handle})
	assert.ErrorIs(t, err, cuda.ErrInvalidContext)
}

func TestOnlyLegacyMemoryHasALegacyHandle(t *testing.T) {
	needLegacy(t)
	needPools(t)
	owner := start(t, setting{})
	b := owner.shared(mib, 0)
	_, err := owner.do(call{Op: "handle", Ptr: b.ptr})
	assert.Error(t, err)
}

func TestALegacyHandleDiesWithItsProcess(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	user.must(call{Op: "synchronize"})
	_, handle := owner.legacy(4*mib, 0)
	owner.kill()
	_, err := user.do(call{Op: "open", Data: handle})
	assert.ErrorIs(t, err, cuda.ErrInvalidHandle)
}

func TestALegacyHandleOpensAgainAfterTheContextWasDestroyed(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	_, handle := owner.legacy(4*mib, 0x51)
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	user.must(call{Op: "close opened", Ptr: opened})
	user.must(call{Op: "forget context"})
	opened = user.must(call{Op: "open", Data: handle}).Ptr
	assert.True(t, user.is(opened, 4*mib, 0x51))
}

func TestALegacyHandleOpensInASecondContext(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	_, handle := owner.legacy(4*mib, 0)
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	user.must(call{Op: "close opened", Ptr: opened})
	r := user.must(call{Op: "open beside", Data: handle})
	assert.Equal(t, uint64(4*mib), r.Size)
	assert.False(t, r.OK, "the primary context does not know its range")
}

func TestALegacyHandleThatIsOpenInThePrimaryContextDoesNotOpenInASecondOne(t *testing.T) {
	needLegacy(t)
	owner, user := start(t, setting{}), start(t, setting{})
	_, handle := owner.legacy(4*mib, 0)
	opened := user.must(call{Op: "open", Data: handle}).Ptr
	_, err := user.do(call{Op: "open beside", Data: handle})
	require.ErrorIs(t, err, cuda.ErrInvalidHandle)
	user.must(call{Op: "close opened", Ptr: opened})
	user.must(call{Op: "open beside", Data: handle})
}
