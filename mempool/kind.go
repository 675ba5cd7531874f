package mempool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// Kind says where a pool's memory comes from.
type Kind string

// The kinds of memory. [Kind.Probe] finds out which kinds a machine supports.
const (
	// Device is a CUDA memory pool that is exported as a POSIX file descriptor.
	Device Kind = "device"
	// Host is the memory of a memfd. Host needs no GPU and no driver.
	Host Kind = "host"
)

// Backend describes one kind of memory to the rest of this package: how to make the memory, and how to map it in another process.
type Backend struct {
	Kind Kind
	// Probe returns an error if the device cannot have pools of this kind. The error wraps ErrUnavailable and names what is missing.
	Probe func(device string) error
	// Create makes the memory of a new pool. Create takes memory of the CPU only through its second argument.
	Create func(PoolSpec, *hostmem.Memory) (Arena, error)
	// Open maps a pool that another process created.
	Open func(PoolInfo, Export) (ImportedArena, error)
	// OpenFor maps a pool of another process for a GPU that is not the pool's own GPU, with a separate import. The argument other is the
	// UUID of that GPU. OpenFor is nil if the imports of the kind can be extended to other GPUs: see [ImportedArena].Reach.
	OpenFor func(p PoolInfo, x Export, other string) (ImportedArena, error)
}

// backends is the registry of kinds. A new kind needs one source file and one entry in this list.
var backends = []Backend{deviceBackend, vmmBackend, legacyBackend, pinnedBackend, hostBackend}

// Register adds a kind of memory, for tests and for programs with their own kinds. Call Register before any other use of this package, for
// example in an init function.
func Register(b Backend) { backends = append(backends, b) }

func (k Kind) backend() (Backend, error) {
	i := slices.IndexFunc(backends, func(b Backend) bool { return b.Kind == k })
	if i < 0 {
		return Backend{}, situation.Of(ErrInvalid, "unknown kind %q of memory (known: %v)", string(k), Kinds())
	}
	return backends[i], nil
}

// Kinds returns every kind that this package knows, also the kinds that this machine does not support.
func Kinds() []Kind {
	kinds := make([]Kind, len(backends))
	for i, b := range backends {
		kinds[i] = b.Kind
	}
	return kinds
}

// Probe returns an error if this process cannot make pools of kind k on the device (an ordinal, a UUID, or "" for the first GPU).
//
// Errors: [ErrUnavailable] with a text that names what is missing; [ErrInvalid] for an unknown kind.
func (k Kind) Probe(device string) error {
	b, err := k.backend()
	if err != nil {
		return err
	}
	return b.Probe(device)
}

// Arena is the memory of one pool. Several goroutines may call its methods at the same time.
type Arena interface {
	// Device returns the device of the memory.
	Device() DeviceInfo
	// Granularity returns a power of two in bytes. The size of every allocation is a multiple of this number.
	Granularity() uint64
	// Export returns the data and files that another process needs once, before that process maps allocations of this arena. The arena owns
	// the files.
	Export() Export
	// Allocate allocates size bytes; size is a multiple of Granularity. If the allocation takes long, the end of ctx stops it.
	// Errors: ErrOutOfMemory, the context's error.
	Allocate(ctx context.Context, size uint64) (Allocation, error)
	// InUse returns how many bytes are allocated, according to the source of the memory (such as the driver).
	InUse() (uint64, error)
	// Close frees the memory. The caller must have freed all allocations, except the allocations whose Free has failed.
	Close() error
}

// Lasting is an [Arena] that clears memory when the memory is freed. A process that still maps freed memory then reads zeros.
type Lasting interface {
	// Last tells the arena that no caller will allocate any more. Memory that is freed after this call keeps its content.
	Last()
}

// NewArena makes the allocator of a pool without a service: no service counts its allocations, shares them or uses them again. NewArena
// takes memory of the CPU through the parameter memory. Call NewArena directly only to measure the cost of a kind.
//
// Errors: [ErrInvalid], [ErrUnavailable] if this machine does not support the kind, [ErrOutOfMemory].
func NewArena(spec PoolSpec, memory *hostmem.Memory) (Arena, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	b, err := spec.Kind.backend()
	if err != nil {
		return nil, err
	}
	arena, err := b.Create(spec, memory)
	if err != nil {
		return nil, adviseWithoutGPU(err)
	}
	if least := max(sizeclass.Least, arena.Granularity()); spec.MaxBytes < least {
		return nil, errors.Join(situation.Of(ErrInvalid, "pool %q could never hold a buffer: it may take %s, and the smallest block of kind %s "+
			"has %s; sizes are in bytes, unless they have a unit (max=64MiB)", spec.Name, bytesize.Text(spec.MaxBytes), spec.Kind,
			bytesize.Text(least)), arena.Close())
	}
	return arena, nil
}

// adviseWithoutGPU adds advice to an error if the error says that there is no driver or no GPU.
func adviseWithoutGPU(err error) error {
	if !errors.Is(err, cuda.ErrNoDriver) && !errors.Is(err, cuda.ErrNoDevice) {
		return err
	}
	return fmt.Errorf("%w; without a GPU use kind %q, and `poolsvc doctor` says what is missing", err, string(Host))
}

// Allocation is one piece of memory from an [Arena].
type Allocation interface {
	Memory
	// Export returns what another process needs to map this allocation. The allocation owns the files.
	Export() (Export, error)
	// Free returns the memory to the arena. If Free fails, the arena still counts the memory, and the caller may call Free again.
	Free() error
}

// ImportedArena is an arena of another process that is open in this process.
type ImportedArena interface {
	// Import imports one allocation of size bytes. Errors: ErrInvalid if x is not the export of an allocation of size bytes.
	Import(x Export, size uint64) (Mapping, error)
	// Reach lets another GPU (an ordinal or a UUID) access all present and future mappings in this process. For a kind with
	// [Backend.OpenFor], Reach does nothing: such a kind has a separate import for each GPU. Errors: ErrUnavailable if the hardware does
	// not let the GPU access the memory; the text of the error names both GPUs.
	Reach(device string) error
	// Close closes the arena. The caller must have closed all mappings.
	Close() error
}

// Mapping is an allocation of another process that this process has imported.
type Mapping interface {
	// Memory returns the mapping for reading and writing if write is true, and the mapping for reading otherwise. The first call for a
	// mapping makes that mapping. If memory of the kind cannot be mapped read-only, both mappings are the same.
	Memory(write bool) (Memory, error)
	// Close unmaps the allocation.
	Close() error
}

// Memory is memory that this process can access. Offsets are in bytes from the beginning of the memory. The caller must check offsets.
type Memory interface {
	// CopyFrom copies src to the memory at off. The caller may change src after CopyFrom has returned. Later work in the memory's queue
	// sees the data.
	CopyFrom(off uint64, src []byte) error
	// CopyTo waits for the work in the memory's queue, copies the memory at off to dst, and returns when dst is filled.
	CopyTo(dst []byte, off uint64) error
	// Fill sets n bytes at off to b. Later work in the memory's queue sees the new bytes.
	Fill(off, n uint64, b byte) error
	// Bytes returns the memory for the CPU, or nil if the CPU cannot access the memory.
	Bytes() []byte
	// Pointer returns the memory's address. For memory on a GPU, the address is a CUDA device pointer.
	Pointer() uintptr
	// Queue returns the queue in which this package works on the memory. The work in the queue must be done before the memory is freed or
	// unmapped.
	Queue() Queue
	// Synchronize returns when all work that this package started on the memory is done. A transfer does not need Synchronize: see
	// [Clock.Signal].
	Synchronize() error
}

// Export is what another process needs to map a pool or a block.
type Export struct {
	// Data has bytes. The kind of memory defines their meaning.
	Data []byte
	// Files has the file descriptors to send together with Data, in this order.
	Files []*os.File
}

// DeviceInfo names the device of a pool.
type DeviceInfo struct {
	// Ordinal is the device's number in this process; −1 for memory without a device.
	Ordinal int
	// UUID is "GPU-xxxxxxxx-…", the same in every process; empty for memory without a device.
	UUID string
}

// NoDevice is the DeviceInfo of memory that does not belong to a GPU.
var NoDevice = DeviceInfo{Ordinal: -1}
