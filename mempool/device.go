package mempool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// deviceBackend makes memory in a CUDA memory pool that is exported as a POSIX file descriptor.
var deviceBackend = Backend{Kind: Device, Probe: probeDevice, Create: newDeviceBacking, Open: openDeviceBacking, Whole: poolBlockBytes}

// poolBlockBytes is the most bytes of a block of a CUDA memory pool. NVIDIA's driver crashes the importing process if a block is too large: see
// docs/measured.md, which has the exact size for one driver. In a pool of kind device, a larger block is physical memory of its own, as blocks
// of kind vmm are.
const poolBlockBytes = 4 << 30

// physicalPage is the size of the pages in which the driver takes physical memory of a GPU. The sizes of CUDA memory pools, and of blocks that are
// in none, are multiples of it.
const physicalPage = 2 << 20

// blockGranularity is the alignment of blocks in bytes. CUDA aligns its own allocations in the same way.
const blockGranularity = 512

// FindDevice returns a GPU. The parameter `name` is the GPU's ordinal or its UUID; "" means the first GPU. An ordinal is valid in this
// process only: in a process with a different CUDA_VISIBLE_DEVICES, the same GPU may have a different ordinal. The UUID of a GPU is the
// same in every process.
//
// Errors: [ErrUnavailable] if this process does not see the GPU, [ErrInvalid] if the name is neither an ordinal nor a UUID.
func FindDevice(name string) (cuda.Device, error) {
	if err := cuda.Init(); err != nil {
		return cuda.Device{}, deviceError("find a GPU", err)
	}
	if name == "" {
		name = "0"
	}
	if ordinal, err := strconv.Atoi(name); err == nil {
		n, err := cuda.DeviceCount()
		if err != nil {
			return cuda.Device{}, deviceError("count the GPUs", err)
		}
		if ordinal < 0 || ordinal >= n {
			return cuda.Device{}, typed.Errorf(ErrUnavailable, "there is no GPU %d: this process sees %d", ordinal, n)
		}
		d, err := cuda.DeviceAt(ordinal)
		return d, deviceError("find GPU "+name, err)
	}
	uuid, err := cuda.ParseUUID(name)
	if err != nil {
		return cuda.Device{}, typed.Errorf(ErrInvalid, "a device is an ordinal or a UUID (GPU-…), not %q", name)
	}
	d, err := cuda.DeviceByUUID(uuid)
	if err != nil {
		return cuda.Device{}, typed.Errorf(ErrUnavailable, "this process sees no GPU %s: %v", name, err)
	}
	return d, nil
}

// DeviceUUID returns the UUID of a GPU. The parameter `name` is the GPU's ordinal or its UUID; "" means the first GPU.
//
// Errors: as [FindDevice].
func DeviceUUID(name string) (string, error) {
	d, err := FindDevice(name)
	if err != nil {
		return "", err
	}
	uuid, err := d.UUID()
	return uuid.String(), deviceError("read the GPU's UUID", err)
}

func probeDevice(name string) error {
	d, err := FindDevice(name)
	if err != nil {
		return err
	}
	return probePools(d)
}

// probePools returns an error if d has no memory pools that can be shared by file descriptor.
func probePools(d cuda.Device) error {
	if ok, err := d.SupportsMemPools(); err != nil || !ok {
		return deviceLacks(d, "memory pools (cuMemPoolCreate)", err)
	}
	if ok, err := d.SupportsPOSIXFDPools(); err != nil || !ok {
		return deviceLacks(d, "memory pools that can be exported as POSIX file descriptors", err)
	}
	return nil
}

func deviceLacks(d cuda.Device, feature string, err error) error {
	name, _ := d.Name()
	if err != nil {
		return typed.Errorf(ErrUnavailable, "cannot tell whether GPU %d (%s) has %s: %v", d.Ordinal(), name, feature, err)
	}
	return typed.Errorf(ErrUnavailable, "GPU %d (%s) has no %s", d.Ordinal(), name, feature)
}

// deviceError wraps a driver's error with a sentinel of this package and the name of the operation. errors.Is and errors.As still find the
// driver's error.
func deviceError(op string, err error) error {
	if err == nil {
		return nil
	}
	sentinel := ErrInternal
	switch {
	case errors.Is(err, cuda.ErrOutOfMemory):
		sentinel = ErrOutOfMemory
	case errors.Is(err, cuda.ErrNoDriver), errors.Is(err, cuda.ErrNoDevice), errors.Is(err, cuda.ErrDriverTooOld),
		errors.Is(err, cuda.ErrSymbolNotFound), errors.Is(err, cuda.ErrNotSupported):
		sentinel = ErrUnavailable
	case errors.Is(err, cuda.ErrInvalidValue), errors.Is(err, cuda.ErrInvalidHandle):
		sentinel = ErrInvalid
	}
	return fmt.Errorf("%w: %s: %w", sentinel, op, err)
}

// deviceBacking is a CUDA memory pool of this process.
type deviceBacking struct {
	*gpu
	pool  *cuda.MemPool
	file  *os.File
	large vmmBacking // for blocks that are too large for the CUDA memory pool

	mu   sync.Mutex
	owed []*deviceAllocation // allocations that no caller holds and that the driver has failed to free
}

func newDeviceBacking(spec PoolSpec, _ *hostmem.Memory) (Backing, error) {
	g, err := gpuFor(spec, probePools)
	if err != nil {
		return nil, err
	}
	return newPoolBacking(g, spec, cuda.DeviceLocation(g.device))
}

// newPoolBacking makes a CUDA memory pool and returns its backing. The backing owns g. If newPoolBacking fails, it closes g.
func newPoolBacking(g *gpu, spec PoolSpec, where cuda.Location) (*deviceBacking, error) {
	pool, err := g.ctx.NewMemPool(cuda.MemPoolSpec{MaxBytes: sizeclass.RoundUp(spec.MaxBytes, physicalPage), Location: where, Exportable: true})
	if err != nil {
		return nil, errors.Join(deviceError("make a memory pool", err), g.Close())
	}
	fd, err := pool.ExportFD()
	if err != nil {
		return nil, errors.Join(deviceError("export a memory pool", err), insist(pool.Close), g.Close())
	}
	return &deviceBacking{gpu: g, pool: pool, file: os.NewFile(uintptr(fd), "cuda pool "+spec.Name), large: vmmBacking{gpu: g}}, nil
}

func (a *deviceBacking) Device() DeviceInfo  { return a.info }
func (a *deviceBacking) Granularity() uint64 { return blockGranularity }
func (a *deviceBacking) Export() Export      { return Export{Files: []*os.File{a.file}} }

func (a *deviceBacking) InUse() (uint64, error) {
	n, err := a.pool.UsedMem()
	return n + a.large.used.Load(), deviceError("read a memory pool's use", err)
}

func (a *deviceBacking) Allocate(ctx context.Context, size uint64) (Allocation, error) {
	if size > poolBlockBytes {
		if err := vmmOf(a.device); err != nil {
			return nil, err
		}
		return a.large.Allocate(ctx, size)
	}
	ptr, err := a.pool.Alloc(size, a.stream)
	if err != nil {
		return nil, deviceError("allocate "+bytesize.Text(size), err)
	}
	d := &deviceAllocation{deviceMemory: deviceMemory{a.gpu, ptr, size}, pool: a.pool}
	// Wait until the stream has done the allocation, because other processes must be able to use the memory at once.
	if err := a.stream.Synchronize(); err != nil {
		return nil, errors.Join(deviceError("wait for an allocation", err), a.free(d))
	}
	return d, nil
}

// free frees the allocations in more, and the allocations that earlier calls failed to free.
func (a *deviceBacking) free(more ...*deviceAllocation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	a.owed = slices.DeleteFunc(append(a.owed, more...), func(d *deviceAllocation) bool {
		err := insist(d.Free)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

func (a *deviceBacking) Close() error {
	return errors.Join(a.free(), deviceError("destroy a memory pool", insist(a.pool.Close)), closeFile(a.file), a.gpu.Close())
}

// deviceAllocation is memory from a deviceBacking.
type deviceAllocation struct {
	deviceMemory
	pool  *cuda.MemPool
	freed bool // the driver has accepted the call of Free, but may not have freed the memory yet
}

func (d *deviceAllocation) Export() (Export, error) {
	x, err := d.pool.ExportPtr(d.ptr)
	if err != nil {
		return Export{}, deviceError("export a block", err)
	}
	return Export{Data: x[:]}, nil
}

func (d *deviceAllocation) Free() error {
	if !d.freed {
		if err := d.pool.Free(d.ptr, d.stream); err != nil {
			return deviceError("free a block", err)
		}
		d.freed = true
	}
	return deviceError("wait for a block to be free", d.stream.Synchronize())
}

// importedDeviceBacking has the CUDA memory pools of a service's pool. Each process of the service that has allocated memory had one of its own:
// see service.Adopt.
type importedDeviceBacking struct {
	*gpu
	first  uint64 // the number of the pool to which blocks belong whose export names none
	newest uint64
	pools  map[uint64]*importedPool
	grant  func(*cuda.MemPool) error // gives GPUs access to a pool that is imported
	large  *importedVMMBacking       // has the blocks that are in no CUDA memory pool; nil: the kind has none. Its GPUs are those that Reach gave access.
}

// importedPool is a CUDA memory pool of another process.
type importedPool struct {
	*cuda.MemPool
	blocks int // of which this process has mappings
}

func openDeviceBacking(p PoolInfo, x Export) (ImportedBacking, error) {
	a, err := newImportedBacking(p)
	if err != nil {
		return nil, err
	}
	a.large = &importedVMMBacking{gpu: a.gpu, blocks: make(map[*vmmImport]struct{})}
	a.grant = func(pool *cuda.MemPool) error {
		for _, d := range a.large.others {
			if err := pool.SetAccess(d, cuda.AccessReadWrite); err != nil {
				return unreachable(d, a.device, err)
			}
		}
		return nil
	}
	return a, a.open(p, x)
}

func newImportedBacking(p PoolInfo) (*importedDeviceBacking, error) {
	g, err := gpuOf(p)
	if err != nil {
		return nil, err
	}
	return &importedDeviceBacking{gpu: g, pools: make(map[uint64]*importedPool)}, nil
}

// open imports the pool that the export of a service's pool names, if it names one. If open fails, it closes the backing.
func (a *importedDeviceBacking) open(p PoolInfo, x Export) (err error) {
	switch {
	case len(x.Files) > 1 || len(x.Data) != 0 && len(x.Data) != poolNumberBytes:
		err = typed.Errorf(ErrInvalid, "a pool of kind %q comes with at most one file descriptor and %d bytes, this one with %d and %d bytes", p.Kind,
			poolNumberBytes, len(x.Files), len(x.Data))
	case len(x.Files) == 1:
		if len(x.Data) > 0 {
			a.first = binary.LittleEndian.Uint64(x.Data)
		}
		_, err = a.pool(a.first, x.Files)
	}
	if err != nil {
		return errors.Join(err, a.Close())
	}
	return nil
}

// poolNumberBytes is the length of the number of a CUDA memory pool in exports.
const poolNumberBytes = 8

// pool returns the pool of a number, and imports it if this process has not. A process must not import a pool twice.
func (a *importedDeviceBacking) pool(number uint64, files []*os.File) (*importedPool, error) {
	if p := a.pools[number]; p != nil {
		return p, nil
	}
	if len(files) != 1 {
		return nil, typed.Errorf(ErrInvalid, "the block is in CUDA memory pool %d, which this process has not opened, and comes with %d file descriptors, not one",
			number, len(files))
	}
	pool, err := a.ctx.ImportMemPool(int(files[0].Fd()))
	if err != nil {
		return nil, importError("import a memory pool", err)
	}
	if err := a.grant(pool); err != nil {
		return nil, errors.Join(err, insist(pool.Close))
	}
	p := &importedPool{MemPool: pool}
	a.pools[number], a.newest = p, max(a.newest, number)
	return p, nil
}

func (a *importedDeviceBacking) Import(x Export, size uint64) (Mapping, error) {
	if a.large != nil && len(x.Data) == 0 {
		m, err := a.large.Import(x, size)
		if err != nil {
			return nil, err
		}
		return largeMapping{m}, nil
	}
	var data cuda.PtrExportData
	number := a.first
	if len(x.Data) == len(data)+poolNumberBytes {
		number = binary.LittleEndian.Uint64(x.Data[len(data):])
	} else if len(x.Data) != len(data) || len(x.Files) != 0 {
		return nil, typed.Errorf(ErrInvalid, "a block of a CUDA memory pool is exported as %d bytes, not as %d bytes and %d file descriptors",
			len(data), len(x.Data), len(x.Files))
	}
	copy(data[:], x.Data)
	pool, err := a.pool(number, x.Files)
	if err != nil {
		return nil, err
	}
	ptr, err := pool.ImportPtr(data)
	if err != nil {
		return nil, importError("import a block", err)
	}
	pool.blocks++
	a.prune()
	m := &deviceMapping{deviceMemory: deviceMemory{a.gpu, ptr, size}, backing: a, number: number}
	if base, has, err := a.ctx.AddressRange(ptr); err == nil && size > has-uint64(ptr-base) {
		err = typed.Errorf(ErrInvalid, "a block of %d bytes is more than the %d that its export names", size, has-uint64(ptr-base))
		return nil, errors.Join(err, insist(m.Close))
	}
	return m, nil
}

func (a *importedDeviceBacking) Reach(name string) error {
	d, err := a.peer(name)
	if err != nil || d == a.device || slices.Contains(a.large.others, d) {
		return err
	}
	for _, p := range a.pools {
		if err := p.SetAccess(d, cuda.AccessReadWrite); err != nil {
			return unreachable(d, a.device, err)
		}
	}
	return a.large.Reach(name)
}

func (a *importedDeviceBacking) Close() error {
	var errs []error
	for _, p := range a.pools {
		errs = append(errs, deviceError("let go of a memory pool", insist(p.Close)))
	}
	return errors.Join(append(errs, a.gpu.Close())...)
}

// largeMapping is a block that is in no CUDA memory pool. Readers have no read-only mapping of it, because they have none of the kind's other
// blocks.
type largeMapping struct{ Mapping }

func (m largeMapping) Memory(bool) (Memory, error) { return m.Mapping.Memory(true) }

// deviceMapping is a block of an importedDeviceBacking.
type deviceMapping struct {
	deviceMemory
	backing *importedDeviceBacking
	number  uint64 // of the CUDA memory pool
	freed   bool   // the driver has accepted the call that unmaps, but may not have unmapped the memory yet
}

// Memory returns the same mapping for reading and for writing, because memory of a CUDA memory pool cannot be read-only.
func (m *deviceMapping) Memory(bool) (Memory, error) { return m.deviceMemory, nil }

func (m *deviceMapping) Close() error {
	pool := m.backing.pools[m.number]
	if !m.freed {
		if err := pool.Free(m.ptr, m.stream); err != nil {
			return deviceError("unmap a block", err)
		}
		m.freed = true
	}
	if err := m.stream.Synchronize(); err != nil {
		return deviceError("wait for a block to be unmapped", err)
	}
	pool.blocks--
	m.backing.prune()
	return nil
}

// prune closes old pools of which this process maps no block: an import keeps memory. Close closes those for which that fails.
func (a *importedDeviceBacking) prune() {
	maps.DeleteFunc(a.pools, func(number uint64, p *importedPool) bool {
		return p.blocks == 0 && number < a.newest && insist(p.Close) == nil
	})
}
