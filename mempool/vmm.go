package mempool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// VMM is memory of a GPU in separate blocks (cuMemCreate), each with a file descriptor. A process that maps a block for reading cannot
// write the block through that mapping. The file descriptor of a block gives access to this block only.
const VMM Kind = "vmm"

var vmmBackend = Backend{Kind: VMM, Probe: probeVMM, Create: newVMMBacking, Open: openVMMBacking}

func probeVMM(name string) error {
	d, err := FindDevice(name)
	if err != nil {
		return err
	}
	return vmmOf(d)
}

// vmmOf returns an error if d has no virtual memory management.
func vmmOf(d cuda.Device) error {
	if ok, err := d.SupportsVMM(); err != nil || !ok {
		return deviceLacks(d, "virtual memory management with POSIX file descriptors (cuMemCreate)", err)
	}
	return nil
}

// vmmBacking allocates physical memory on one GPU. The driver has no memory pool for this kind, so the backing itself counts the bytes in use.
type vmmBacking struct {
	*gpu
	granularity uint64
	used        atomic.Uint64
}

func newVMMBacking(spec PoolSpec, _ *hostmem.Memory) (Backing, error) {
	g, err := gpuFor(spec, vmmOf)
	if err != nil {
		return nil, err
	}
	granularity, err := g.ctx.AllocationGranularity()
	if err == nil && granularity&(granularity-1) != 0 {
		err = fmt.Errorf("a granularity of %d bytes is not a power of two", granularity)
	}
	if err != nil {
		return nil, errors.Join(deviceError("read the granularity of physical memory", err), g.Close())
	}
	return &vmmBacking{gpu: g, granularity: granularity}, nil
}

func (a *vmmBacking) Device() DeviceInfo     { return a.info }
func (a *vmmBacking) Granularity() uint64    { return a.granularity }
func (a *vmmBacking) Export() Export         { return Export{} }
func (a *vmmBacking) InUse() (uint64, error) { return a.used.Load(), nil }
func (a *vmmBacking) Close() error           { return a.gpu.Close() }

func (a *vmmBacking) Allocate(_ context.Context, size uint64) (Allocation, error) {
	physical, err := a.ctx.NewPhysical(size)
	if err != nil {
		return nil, deviceError("allocate "+bytesize.Text(size), err)
	}
	mapping, err := a.ctx.MapPhysical(physical, cuda.AccessReadWrite)
	if err != nil {
		return nil, errors.Join(deviceError("map physical memory", err), insist(physical.Close))
	}
	a.used.Add(size)
	return &vmmAllocation{deviceMemory: deviceMemory{a.gpu, mapping.Ptr(), size}, backing: a, physical: physical, mapping: mapping}, nil
}

// vmmAllocation is physical memory of a vmmBacking, mapped in the service.
type vmmAllocation struct {
	deviceMemory
	backing  *vmmBacking
	physical *cuda.Physical
	mapping  *cuda.Mapping
	file     *os.File // the file of the export; nil before the first call of Export
}

func (v *vmmAllocation) Export() (Export, error) {
	if v.file == nil {
		fd, err := v.physical.ExportFD()
		if err != nil {
			return Export{}, deviceError("export a block", err)
		}
		v.file = os.NewFile(uintptr(fd), "cuda block")
	}
	return Export{Files: []*os.File{v.file}}, nil
}

func (v *vmmAllocation) Free() error {
	if v.file != nil { // closed first, so that no process gets the file any more, even if the driver fails to free the block
		_ = v.file.Close()
		v.file = nil
	}
	if err := errors.Join(v.stream.Synchronize(), v.mapping.Close(), v.physical.Close()); err != nil {
		return deviceError("free a block", err)
	}
	v.backing.used.Add(-v.size)
	return nil
}

// importedVMMBacking maps blocks of another process's vmmBacking.
type importedVMMBacking struct {
	*gpu
	others []cuda.Device // GPUs that can access every mapping, besides the GPU of the memory
	blocks map[*vmmImport]struct{}
}

func openVMMBacking(p PoolInfo, x Export) (ImportedBacking, error) {
	if len(x.Files) != 0 {
		return nil, typed.Errorf(ErrInvalid, "a pool of kind %q comes without file descriptors, this one with %d", VMM, len(x.Files))
	}
	g, err := gpuOf(p)
	if err != nil {
		return nil, err
	}
	return &importedVMMBacking{gpu: g, blocks: make(map[*vmmImport]struct{})}, nil
}

func (a *importedVMMBacking) Import(x Export, size uint64) (Mapping, error) {
	if len(x.Files) != 1 || len(x.Data) != 0 {
		return nil, typed.Errorf(ErrInvalid, "a block of kind %q is exported as one file descriptor, not as %d bytes and %d file descriptors",
			VMM, len(x.Data), len(x.Files))
	}
	physical, err := a.ctx.ImportPhysical(int(x.Files[0].Fd()), size)
	if err != nil {
		return nil, importError("import a block", err)
	}
	m := &vmmImport{backing: a, physical: physical}
	a.blocks[m] = struct{}{}
	return m, nil
}

func (a *importedVMMBacking) Reach(name string) error {
	d, err := a.peer(name)
	if err != nil || d == a.device || slices.Contains(a.others, d) {
		return err
	}
	for m := range a.blocks {
		for i, view := range m.views {
			if view == nil {
				continue
			}
			if err := view.SetAccess(d, viewAccess[i]); err != nil {
				return unreachable(d, a.device, err)
			}
		}
	}
	a.others = append(a.others, d)
	return nil
}

func (a *importedVMMBacking) Close() error { return a.gpu.Close() }

// These are the two mappings that a block can have.
const (
	readView = iota
	writeView
)

var viewAccess = [...]cuda.AccessFlags{readView: cuda.AccessReadOnly, writeView: cuda.AccessReadWrite}

// vmmImport is a block of an importedVMMBacking. The block's physical memory can be mapped at one address for reading, and at another address
// for writing. The first call of Memory(false) makes the mapping for reading, and the first call of Memory(true) makes the mapping for
// writing.
type vmmImport struct {
	backing  *importedVMMBacking
	physical *cuda.Physical
	views    [len(viewAccess)]*cuda.Mapping
}

func (m *vmmImport) Memory(write bool) (Memory, error) {
	i := readView
	if write {
		i = writeView
	}
	if m.views[i] == nil {
		view, err := m.backing.ctx.MapPhysical(m.physical, viewAccess[i], m.backing.others...)
		if err != nil {
			return nil, importError("map a block of "+bytesize.Text(m.physical.Size()), err)
		}
		m.views[i] = view
	}
	mem := deviceMemory{m.backing.gpu, m.views[i].Ptr(), m.physical.Size()}
	if write {
		return mem, nil
	}
	return readOnlyMemory{mem}, nil
}

func (m *vmmImport) Close() error {
	delete(m.backing.blocks, m)
	errs := []error{m.backing.stream.Synchronize()}
	for _, view := range m.views {
		if view != nil {
			errs = append(errs, view.Close())
		}
	}
	return deviceError("unmap a block", errors.Join(append(errs, m.physical.Close())...))
}

// readOnlyMemory is memory with a read-only mapping. It refuses writes itself, because the driver's error for a write does not say that the
// mapping is read-only.
type readOnlyMemory struct{ deviceMemory }

var errReadOnly = typed.Errorf(ErrInvalid, "the memory is mapped read-only: ask for a write lease")

func (readOnlyMemory) CopyFrom(uint64, []byte) error   { return errReadOnly }
func (readOnlyMemory) Fill(uint64, uint64, byte) error { return errReadOnly }
