package mempool

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// Legacy is memory of a GPU that processes share by a handle of 64 bytes (see cuIpcGetMemHandle). Programs can send the handle to each
// other like any other bytes. The memory exists only as long as the service's process lives.
const Legacy Kind = "legacy"

var legacyBackend = Backend{Kind: Legacy, Probe: probeLegacy, Create: newLegacyBacking, Open: openLegacyBacking,
	OpenFor: openLegacyBackingFor}

// legacyGranularity is the driver's granularity for memory of this kind, in bytes. If allocations were smaller, the driver would put
// several of them into one block of its own. The handle of one allocation would then give access to all allocations in this block.
const legacyGranularity = 2 << 20

func probeLegacy(name string) error {
	d, err := FindDevice(name)
	if err != nil {
		return err
	}
	return legacyOf(d)
}

// legacyOf returns an error if d does not support legacy handles.
func legacyOf(d cuda.Device) error {
	if ok, err := d.SupportsLegacyIPC(); err != nil || !ok {
		return deviceLacks(d, "legacy interprocess handles (cuIpcGetMemHandle)", err)
	}
	return nil
}

// legacyBacking allocates memory directly from the driver, without a pool.
type legacyBacking struct {
	*gpu
	used atomic.Uint64
}

func newLegacyBacking(spec PoolSpec, _ *hostmem.Memory) (Backing, error) {
	g, err := gpuFor(spec, legacyOf)
	if err != nil {
		return nil, err
	}
	return &legacyBacking{gpu: g}, nil
}

func (a *legacyBacking) Device() DeviceInfo     { return a.info }
func (a *legacyBacking) Granularity() uint64    { return legacyGranularity }
func (a *legacyBacking) Export() Export         { return Export{} }
func (a *legacyBacking) InUse() (uint64, error) { return a.used.Load(), nil }
func (a *legacyBacking) Close() error           { return a.gpu.Close() }

func (a *legacyBacking) Allocate(_ context.Context, size uint64) (Allocation, error) {
	ptr, err := a.ctx.Malloc(size)
	if err != nil {
		return nil, deviceError("allocate "+bytesize.Text(size), err)
	}
	a.used.Add(size)
	return &legacyAllocation{deviceMemory{a.gpu, ptr, size}, a}, nil
}

// legacyAllocation is memory from a legacyBacking.
type legacyAllocation struct {
	deviceMemory
	backing *legacyBacking
}

func (l *legacyAllocation) Export() (Export, error) {
	base, _, err := l.ctx.AddressRange(l.ptr)
	if err != nil {
		return Export{}, deviceError("find a block's beginning", err)
	}
	handle, err := l.ctx.IPCMemHandle(l.ptr)
	if err != nil {
		return Export{}, deviceError("export a block", err)
	}
	return Export{Data: LegacyHandle{Handle: handle, Offset: uint64(l.ptr - base)}.AppendBinary(nil)}, nil
}

func (l *legacyAllocation) Free() error {
	if err := l.ctx.MFree(l.ptr); err != nil {
		return deviceError("free a block", err)
	}
	l.backing.used.Add(-l.size)
	return nil
}

// importedLegacyBacking opens blocks of another process's legacyBacking, for one GPU. The driver maps the memory of a handle only for the GPU
// of the context that opens the handle. Peer access between contexts does not give access to this memory.
type importedLegacyBacking struct {
	*gpu  // the GPU that works on the memory
	owner cuda.Device
}

func openLegacyBacking(p PoolInfo, x Export) (ImportedBacking, error) {
	if err := noFiles(x); err != nil {
		return nil, err
	}
	g, err := gpuOf(p)
	if err != nil {
		return nil, err
	}
	return importedLegacyBacking{g, g.device}, nil
}

func openLegacyBackingFor(p PoolInfo, x Export, other string) (ImportedBacking, error) {
	if err := noFiles(x); err != nil {
		return nil, err
	}
	d, err := FindDevice(other)
	if err != nil {
		return nil, err
	}
	owner, err := deviceOf(p)
	if err != nil {
		return nil, err
	}
	if err := peerAccess(d, owner); err != nil {
		return nil, err
	}
	g, err := openGPU(d)
	if err != nil {
		return nil, err
	}
	return importedLegacyBacking{g, owner}, nil
}

func noFiles(pool Export) error {
	if len(pool.Files) != 0 {
		return typed.Errorf(ErrInvalid, "a pool of kind %q comes without file descriptors, this one with %d", Legacy, len(pool.Files))
	}
	return nil
}

func (a importedLegacyBacking) Import(x Export, size uint64) (Mapping, error) {
	if len(x.Files) != 0 {
		return nil, typed.Errorf(ErrInvalid, "a block of kind %q is exported as bytes, not as %d file descriptors", Legacy, len(x.Files))
	}
	h, err := ParseLegacyHandle(x.Data)
	if err != nil {
		return nil, err
	}
	opened, err := h.Open(a.ctx, size)
	if refusal, ok := errors.AsType[*cuda.Error](err); ok && a.owner != a.device {
		if opens, failed := h.opensInPrimary(a.owner); opens {
			return nil, errors.Join(unreachable(a.device, a.owner,
				fmt.Errorf("the driver opens the legacy handle for the memory's own GPU only: %w", refusal)), failed)
		}
	}
	if err != nil {
		return nil, err
	}
	return &legacyMapping{deviceMemory{a.gpu, opened.Ptr(), size}, opened}, nil
}

// Reach does nothing: a session imports the pool separately for each GPU, and the driver gives this GPU access when it opens a handle.
func (a importedLegacyBacking) Reach(string) error { return nil }

func (a importedLegacyBacking) Close() error { return a.gpu.Close() }

// legacyMapping is a block of an importedLegacyBacking.
type legacyMapping struct {
	deviceMemory
	opened *OpenedHandle
}

func (m *legacyMapping) Memory(bool) (Memory, error) { return m.deviceMemory, nil }

func (m *legacyMapping) Close() error {
	return errors.Join(deviceError("wait for the GPU", m.stream.Synchronize()), m.opened.Close())
}
