package mempool

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// Pinned is memory of the host, on the NUMA node closest to a GPU. The CPU and the GPU access this memory at the same address. The memory
// comes from a CUDA memory pool, as memory of kind [Device] does.
const Pinned Kind = "pinned"

var pinnedBackend = Backend{Kind: Pinned, Probe: probePinned, Create: newPinnedBacking, Open: openPinnedBacking, LargestBlock: poolBlockBytes}

func probePinned(name string) error {
	d, err := FindDevice(name)
	if err != nil {
		return err
	}
	return pinnedOf(d)
}

// pinnedOf returns an error if d has no memory pools on the host.
func pinnedOf(d cuda.Device) error {
	if err := probePools(d); err != nil {
		return err
	}
	if ok, err := d.SupportsHostNUMAPools(); err != nil || !ok {
		return deviceLacks(d, "memory pools on NUMA nodes of the host", err)
	}
	return nil
}

// pinnedBacking is a CUDA memory pool on the host.
type pinnedBacking struct {
	*deviceBacking
	memory *hostmem.Memory
}

func newPinnedBacking(spec PoolSpec, memory *hostmem.Memory) (Backing, error) {
	d, err := FindDevice(spec.Device)
	if err != nil {
		return nil, err
	}
	if err := pinnedOf(d); err != nil {
		return nil, err
	}
	if err := memory.Fits(spec.MaxBytes); err != nil {
		return nil, memoryError(err)
	}
	g, err := openGPU(d)
	if err != nil {
		return nil, err
	}
	node, err := g.device.HostNUMANode()
	if err != nil {
		return nil, errors.Join(deviceError("find the GPU's NUMA node", err), g.Close())
	}
	// −1 means that the system has no NUMA nodes. The driver then uses node 0.
	a, err := newPoolBacking(g, spec, cuda.HostNUMALocation(max(node, 0)))
	if err != nil {
		return nil, err
	}
	if err := a.pool.SetAccess(g.device, cuda.AccessReadWrite); err != nil {
		return nil, errors.Join(deviceError(fmt.Sprintf("let GPU %d reach memory of the host", g.device.Ordinal()), err), a.Close())
	}
	return pinnedBacking{a, memory}, nil
}

// Allocate checks once that all the memory is available, because one call of the driver allocates all the memory.
func (a pinnedBacking) Allocate(ctx context.Context, size uint64) (Allocation, error) {
	var d *deviceAllocation
	err := a.memory.Take(size, size, func(uint64, uint64) error {
		m, err := a.deviceBacking.Allocate(ctx, size)
		if err == nil {
			d = m.(*deviceAllocation)
		}
		return err
	})
	if err != nil {
		return nil, memoryError(err)
	}
	return &pinnedAllocation{pinnedMemoryOf(d.deviceMemory), d}, nil
}

// pinnedAllocation is memory from a pinnedBacking.
type pinnedAllocation struct {
	pinnedMemory
	device *deviceAllocation
}

func (p *pinnedAllocation) Export() (Export, error) { return p.device.Export() }
func (p *pinnedAllocation) Free() error             { return p.device.Free() }

// pinnedMemory is memory that the CPU and the GPU access at the same address.
type pinnedMemory struct {
	hostMemory
	gpu *gpu
}

func pinnedMemoryOf(m deviceMemory) pinnedMemory {
	return pinnedMemory{hostMemory{m.ptr.HostBytes(m.size)}, m.gpu}
}

func (p pinnedMemory) Synchronize() error {
	return deviceError("wait for the GPU", p.gpu.deviceStream.stream.Synchronize())
}

// importedPinnedBacking is a pinnedBacking of another process.
type importedPinnedBacking struct {
	*importedDeviceBacking
	refused map[cuda.Device]error // the GPUs that cannot access the memory, with the reasons
}

func openPinnedBacking(p PoolInfo, x Export) (ImportedBacking, error) {
	d, err := newImportedBacking(p)
	if err != nil {
		return nil, err
	}
	gpus, err := cuda.Devices()
	if err != nil {
		return nil, errors.Join(deviceError("find the GPUs that are to reach memory of the host", err), d.Close())
	}
	a := importedPinnedBacking{d, make(map[cuda.Device]error)}
	// Each process must ask the driver to give GPUs access to a pool. For a pool in host memory, the driver refuses this as soon as the
	// process has mapped a block of the pool. So give all GPUs access now.
	d.grant = func(pool *cuda.MemPool) error {
		for _, g := range gpus {
			if err := pool.SetAccess(g, cuda.AccessReadWrite); err != nil {
				a.refused[g] = deviceError(fmt.Sprintf("let GPU %d reach memory of the host", g.Ordinal()), err)
			}
		}
		return a.refused[a.device]
	}
	return a, d.open(p, x)
}

func (a importedPinnedBacking) Import(x Export, size uint64) (Mapping, error) {
	m, err := a.importedDeviceBacking.Import(x, size)
	if err != nil {
		return nil, err
	}
	d := m.(*deviceMapping)
	return &pinnedMapping{pinnedMemoryOf(d.deviceMemory), d}, nil
}

// Reach returns an error if the driver refused to give the GPU `name` access when this process imported a CUDA memory pool. The GPU needs no
// peer access, because the memory is on the host.
func (a importedPinnedBacking) Reach(name string) error {
	d, err := FindDevice(name)
	if err == nil && a.refused[d] != nil {
		err = unreachable(d, a.device, a.refused[d])
	}
	return err
}

// pinnedMapping is a block of an importedPinnedBacking.
type pinnedMapping struct {
	pinnedMemory
	device *deviceMapping
}

func (m *pinnedMapping) Memory(bool) (Memory, error) { return m.pinnedMemory, nil }
func (m *pinnedMapping) Close() error                { return m.device.Close() }
