package mempool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// Kind is a kind of memory. It says where a pool gets its memory.
type Kind string

// The kinds of memory. [Kind.Probe] finds out which kinds a machine supports.
const (
	// Device is memory of a GPU, from a CUDA memory pool. Processes share the pool by a POSIX file descriptor.
	Device Kind = "device"
	// Host is memory of the CPU, in a memfd. It needs no GPU and no driver.
	Host Kind = "host"
)

// Backend describes one kind of memory to the rest of this package: how to make the memory, and how to map it in another process.
type Backend struct {
	Kind Kind
	// Probe returns an error if pools of this kind are not possible on the device. The error wraps ErrUnavailable. Its text says what is
	// missing.
	Probe func(device string) error
	// Create makes the memory of a new pool. If Create needs memory of the host, it must ask its second argument whether the host has enough
	// memory left.
	Create func(PoolSpec, *hostmem.Memory) (Backing, error)
	// Open maps a pool that another process created.
	Open func(PoolInfo, Export) (ImportedBacking, error)
	// OpenFor maps a pool of another process for a GPU that is not the pool's own GPU, with a separate import. The argument `other` is the
	// UUID of the GPU for which OpenFor maps the pool. OpenFor is nil if an import of this kind can also serve other GPUs: see
	// [ImportedBacking].Reach.
	OpenFor func(p PoolInfo, x Export, other string) (ImportedBacking, error)
	// Adopt makes the backing of a pool whose process is gone, and whose allocations are at these places. It gives the rest of the memory back. It
	// owns the file. If Adopt is nil, the memory of this kind ends with its process.
	Adopt func(f *os.File, at []Place, memory *hostmem.Memory) (Backing, []Allocation, error)
	// LargestBlock is the most bytes that an allocation may have; 0: no limit.
	LargestBlock uint64
	// Whole is the size in bytes above which the size of an allocation is a multiple of physicalPage; 0: there is no such size.
	Whole uint64
}

// backends is the registry of kinds. A new kind needs one source file and one entry in this list.
var backends = []Backend{deviceBackend, vmmBackend, legacyBackend, pinnedBackend, hostBackend}

// Register adds a kind of memory. Tests and programs that have their own kinds call it. Call Register before any other use of this package,
// for example in an init function.
func Register(b Backend) { backends = append(backends, b) }

func (k Kind) backend() (Backend, error) {
	i := slices.IndexFunc(backends, func(b Backend) bool { return b.Kind == k })
	if i < 0 {
		return Backend{}, typed.Errorf(ErrInvalid, "unknown kind %q of memory (known: %s)", string(k), listed(Kinds()))
	}
	return backends[i], nil
}

// listed returns words with commas between them, for an error text.
func listed[T ~string](words []T) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(words), "[]"), " ", ", ")
}

// Kinds returns all kinds that this package knows, including the kinds that this machine does not support.
func Kinds() []Kind {
	kinds := make([]Kind, len(backends))
	for i, b := range backends {
		kinds[i] = b.Kind
	}
	return kinds
}

// Probe returns an error if this process cannot make pools of kind k on a device. The parameter `device` is the GPU's ordinal or its UUID;
// "" means the first GPU.
//
// Errors: [ErrUnavailable] with a text that names what is missing; [ErrInvalid] for an unknown kind.
func (k Kind) Probe(device string) error {
	b, err := k.backend()
	if err != nil {
		return err
	}
	return b.Probe(device)
}

// LargestBlock returns the most bytes that one allocation of this kind may have.
func (k Kind) LargestBlock() uint64 {
	if b, err := k.backend(); err == nil && b.LargestBlock > 0 {
		return b.LargestBlock
	}
	return math.MaxUint64
}

// Granularity returns of what the size of an allocation of n bytes is a multiple, in a backing with a granularity.
func (k Kind) Granularity(n, ofBacking uint64) uint64 {
	if b, err := k.backend(); err == nil && b.Whole > 0 && n > b.Whole {
		return max(ofBacking, physicalPage)
	}
	return ofBacking
}

// Backing is the memory of one pool. Several goroutines may call its methods at the same time.
type Backing interface {
	// Device returns the device of the memory.
	Device() DeviceInfo
	// Granularity returns a number of bytes that is a power of two. The size of every allocation is a multiple of this number.
	Granularity() uint64
	// Export returns the data and the files that another process needs to open this backing. That process opens the backing once, before it maps
	// allocations of the backing. The backing owns the files.
	Export() Export
	// Allocate allocates size bytes; size is a multiple of Granularity. If the allocation takes long and ctx ends, Allocate stops and returns
	// an error. Errors: ErrOutOfMemory, the context's error.
	Allocate(ctx context.Context, size uint64) (Allocation, error)
	// InUse returns how many bytes are allocated, according to the source of the memory (such as the driver).
	InUse() (uint64, error)
	// Close frees the memory. The caller must have freed all allocations, except the allocations whose Free has failed.
	Close() error
}

// Lasting is a [Backing] that clears the memory of an allocation when the allocation's owner frees it. Another process that still maps this
// memory then reads zeros.
type Lasting interface {
	// Last tells the backing that no caller will allocate any more. After this call, the backing does not clear memory when the owner frees it.
	Last()
}

// NewBacking makes a backing. Only a service should call NewBacking. A program that calls NewBacking itself has no service that counts the
// allocations, shares them with other processes, or uses freed memory again; it should call NewBacking only to measure the cost of a kind of
// memory. If the backing needs memory of the host, it must ask the parameter `memory` whether the host has enough memory left.
//
// Errors: [ErrInvalid], [ErrUnavailable] if this machine does not support the kind, [ErrOutOfMemory].
func NewBacking(spec PoolSpec, memory *hostmem.Memory) (Backing, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	b, err := spec.Kind.backend()
	if err != nil {
		return nil, err
	}
	backing, err := b.Create(spec, memory)
	if err != nil {
		return nil, adviseWithoutGPU(err)
	}
	if least := max(sizeclass.Least, backing.Granularity()); spec.MaxBytes < least {
		return nil, errors.Join(typed.Errorf(ErrInvalid, "pool %q could never hold a buffer: it may take %s, and the smallest block of kind %s "+
			"has %s; sizes are in bytes, unless they have a unit (max=64MiB)", spec.Name, bytesize.Text(spec.MaxBytes), spec.Kind,
			bytesize.Text(least)), backing.Close())
	}
	return backing, nil
}

// Place says where an allocation is in the memory of its backing.
type Place struct{ At, Size uint64 }

// Adoptable is an [Allocation] of a backing that can be adopted.
type Adoptable interface {
	// Place returns where the allocation is.
	Place() uint64
}

// CanAdopt says whether the memory of pools of this kind can be adopted.
func (k Kind) CanAdopt() bool {
	b, err := k.backend()
	return err == nil && b.Adopt != nil
}

// AdoptBacking makes the backing of a pool whose process is gone, and its allocations. AdoptBacking owns the file, which the backing's Export had.
//
// Errors: [ErrInvalid] if there cannot be allocations at these places, [ErrUnavailable] if the kind cannot be adopted.
func AdoptBacking(k Kind, f *os.File, at []Place, memory *hostmem.Memory) (Backing, []Allocation, error) {
	b, err := k.backend()
	if err != nil || b.Adopt == nil {
		return nil, nil, errors.Join(typed.Errorf(ErrUnavailable, "the memory of kind %q ended with its process", k), err, f.Close())
	}
	return b.Adopt(f, at, memory)
}

// adviseWithoutGPU adds advice to an error if the error says that there is no driver or no GPU.
func adviseWithoutGPU(err error) error {
	if !errors.Is(err, cuda.ErrNoDriver) && !errors.Is(err, cuda.ErrNoDevice) {
		return err
	}
	return fmt.Errorf("%w; without a GPU use kind %q, and `poolsvc doctor` says what is missing", err, string(Host))
}

// Allocation is one piece of memory from a [Backing].
type Allocation interface {
	Memory
	// Export returns what another process needs to map this allocation. The allocation owns the files.
	Export() (Export, error)
	// Free returns the memory to the backing. If Free fails, the backing still counts the memory, and the caller may call Free again.
	Free() error
}

// ImportedBacking is a backing that another process owns and that this process has opened.
type ImportedBacking interface {
	// Import imports one allocation of size bytes. Errors: ErrInvalid if x is not the export of an allocation of size bytes.
	Import(x Export, size uint64) (Mapping, error)
	// Reach lets another GPU access all present and future mappings of this backing in this process. The parameter `device` is the GPU's ordinal
	// or its UUID. For a kind with [Backend.OpenFor], Reach does nothing: such a kind has a separate import for each GPU, and the driver
	// gives this GPU access to it. Errors: ErrUnavailable if the hardware does not let the GPU access the memory; the text of the error names
	// both GPUs.
	Reach(device string) error
	// Close closes the backing. The caller must have closed all mappings.
	Close() error
}

// Mapping is an allocation that another process owns and that this process has imported.
type Mapping interface {
	// Memory returns the mapping for reading and writing if write is true, and the mapping for reading otherwise. The first call with true and
	// the first call with false make these mappings. If memory of the kind cannot be mapped read-only, both mappings are the same.
	Memory(write bool) (Memory, error)
	// Close unmaps the allocation.
	Close() error
}

// Memory is memory that this process can access. Each offset is a number of bytes from the beginning of the memory. The caller must check
// that the offset and the length are inside the memory.
type Memory interface {
	// CopyFrom copies `src` to the memory at the offset `off`. The caller may change `src` after CopyFrom has returned. Later work in the
	// memory's queue sees the data.
	CopyFrom(off uint64, src []byte) error
	// CopyTo waits for the work in the memory's queue, copies the memory at the offset `off` to `dst`, and returns when `dst` has all bytes.
	CopyTo(dst []byte, off uint64) error
	// Fill sets n bytes at the offset `off` to b. Later work in the memory's queue sees the new bytes.
	Fill(off, n uint64, b byte) error
	// Bytes returns the memory as a slice that the CPU can access, or nil if the CPU cannot access the memory.
	Bytes() []byte
	// Pointer returns the memory's address. For memory on a GPU, the address is a CUDA device pointer.
	Pointer() uintptr
	// Queue returns the queue in which this package does its work on the memory. The work in the queue must be done before the memory is freed
	// or unmapped.
	Queue() Queue
	// Synchronize returns when all work that this package started on the memory is done. A transfer of the memory to another session does not
	// need Synchronize: see [Clock.Signal].
	Synchronize() error
}

// Export is what another process needs to map a pool or a block.
type Export struct {
	// Data has bytes whose meaning depends on the kind of memory.
	Data []byte
	// Files has the files whose descriptors must be sent together with Data, in this order.
	Files []*os.File
}

// DeviceInfo names the device of a pool.
type DeviceInfo struct {
	// Ordinal is the device's number in this process; −1 for memory without a device.
	Ordinal int
	// UUID is the UUID of the GPU ("GPU-xxxxxxxx-…"), which is the same in every process; empty for memory without a device.
	UUID string
}

// NoDevice is the DeviceInfo of memory that does not belong to a GPU.
var NoDevice = DeviceInfo{Ordinal: -1}
