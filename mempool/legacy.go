package mempool

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda"
)

// Legacy is memory of a GPU that travels as a handle of 64 bytes (cuIpcGetMemHandle), through anything that carries
// bytes. It lives only as long as the service.
const Legacy Kind = "legacy"

var legacyBackend = backend{kind: Legacy, probe: probeLegacy, create: newLegacyArena, open: openLegacyArena}

// legacyGranularity is the driver's own for such memory, in bytes: smaller allocations share a block, and with it their
// handle would open their neighbours.
const legacyGranularity = 2 << 20

func probeLegacy(name string) error {
	d, err := FindDevice(name)
	if err != nil {
		return err
	}
	return legacyOf(d)
}

// legacyOf says whether d has legacy handles.
func legacyOf(d cuda.Device) error {
	if ok, err := d.SupportsLegacyIPC(); err != nil || !ok {
		return deviceLacks(d, "legacy interprocess handles (cuIpcGetMemHandle)", err)
	}
	return nil
}

// legacyArena allocates from the driver directly.
type legacyArena struct {
	*gpu
	used atomic.Uint64
}

func newLegacyArena(spec PoolSpec) (Arena, error) {
	g, err := gpuFor(spec, legacyOf)
	if err != nil {
		return nil, err
	}
	return &legacyArena{gpu: g}, nil
}

func (a *legacyArena) Device() DeviceInfo     { return a.info }
func (a *legacyArena) Granularity() uint64    { return legacyGranularity }
func (a *legacyArena) Export() Export         { return Export{} }
func (a *legacyArena) InUse() (uint64, error) { return a.used.Load(), nil }
func (a *legacyArena) Close() error           { return a.gpu.Close() }

func (a *legacyArena) Allocate(size uint64) (Allocation, error) {
	ptr, err := a.ctx.Malloc(size)
	if err != nil {
		return nil, deviceError(fmt.Sprintf("allocate %d bytes", size), err)
	}
	a.used.Add(size)
	return &legacyAllocation{deviceMemory{a.gpu, ptr, size}, a}, nil
}

// legacyAllocation is memory from a legacyArena.
type legacyAllocation struct {
	deviceMemory
	arena *legacyArena
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
	l.arena.used.Add(-l.size)
	return nil
}

// importedLegacyArena opens blocks of another process's legacyArena.
type importedLegacyArena struct{ *gpu }

func openLegacyArena(p PoolInfo, x Export) (ImportedArena, error) {
	if len(x.Files) != 0 {
		return nil, situation(ErrInvalid, "a pool of kind %q comes without file descriptors, this one with %d", Legacy, len(x.Files))
	}
	g, err := gpuOf(p)
	if err != nil {
		return nil, err
	}
	return importedLegacyArena{g}, nil
}

func (a importedLegacyArena) Import(x Export, size uint64) (Mapping, error) {
	if len(x.Files) != 0 {
		return nil, situation(ErrInvalid, "a block of kind %q is exported as bytes, not as %d file descriptors", Legacy, len(x.Files))
	}
	h, err := ParseLegacyHandle(x.Data)
	if err != nil {
		return nil, err
	}
	opened, err := h.Open(a.ctx, size)
	if err != nil {
		return nil, err
	}
	return &legacyMapping{deviceMemory{a.gpu, opened.Ptr(), size}, opened}, nil
}

// Reach lets another GPU reach the memory: the driver does so for whole contexts, not for one pool.
func (a importedLegacyArena) Reach(name string) error {
	d, err := a.peer(name)
	if err != nil || d == a.device || slices.ContainsFunc(a.kept, func(c *cuda.Context) bool { return c.Device() == d }) {
		return err
	}
	ctx, err := d.Retain()
	if err != nil {
		return deviceError(fmt.Sprintf("use GPU %d", d.Ordinal()), err)
	}
	a.keep(ctx)
	if err := ctx.EnablePeer(a.device); err != nil {
		return a.unreachable(d, err)
	}
	return nil
}

func (a importedLegacyArena) Close() error { return a.gpu.Close() }

// legacyMapping is a block of an importedLegacyArena.
type legacyMapping struct {
	deviceMemory
	opened *OpenedHandle
}

func (m *legacyMapping) Memory(bool) (Memory, error) { return m.deviceMemory, nil }

func (m *legacyMapping) Close() error {
	return errors.Join(deviceError("wait for the GPU", m.stream.Synchronize()), m.opened.Close())
}
