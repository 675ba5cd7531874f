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

// The kinds of memory. What a machine can do is for [Kind.Probe] to say.
const (
	// Device is a CUDA memory pool with POSIX-fd export.
	Device Kind = "device"
	// Host is a memfd: no GPU, no driver.
	Host Kind = "host"
)

// Backend is all that the rest of this package knows about a kind: how its memory is made, and mapped elsewhere.
type Backend struct {
	Kind Kind
	// Probe says whether pools of this kind can be made on the device; its error wraps ErrUnavailable and names what is
	// missing.
	Probe func(device string) error
	// Create makes the memory of a new pool. What it takes of the machine's memory it takes by way of the second argument.
	Create func(PoolSpec, *hostmem.Memory) (Arena, error)
	// Open maps a pool that another process created.
	Open func(PoolInfo, Export) (ImportedArena, error)
	// OpenFor maps it for another GPU than the pool's own, which a UUID names, apart from what is open for that one. Nil for
	// a kind whose imports can be extended to other GPUs: see [ImportedArena].Reach.
	OpenFor func(p PoolInfo, x Export, other string) (ImportedArena, error)
}

// backends is the registry: a new kind is one file and one line here.
var backends = []Backend{deviceBackend, vmmBackend, legacyBackend, pinnedBackend, hostBackend}

// Register adds a kind of memory: for tests, and for programs that bring one of their own. It is to be called before this
// package is used, as from an init function.
func Register(b Backend) { backends = append(backends, b) }

func (k Kind) backend() (Backend, error) {
	i := slices.IndexFunc(backends, func(b Backend) bool { return b.Kind == k })
	if i < 0 {
		return Backend{}, situation.Of(ErrInvalid, "unknown kind %q of memory (known: %v)", string(k), Kinds())
	}
	return backends[i], nil
}

// Kinds lists every kind this package knows, whether or not this machine has it.
func Kinds() []Kind {
	kinds := make([]Kind, len(backends))
	for i, b := range backends {
		kinds[i] = b.Kind
	}
	return kinds
}

// Probe says whether a pool of kind k can be made here on the device (an ordinal, a UUID, or "" for the first).
//
// Errors: [ErrUnavailable], naming what is missing; [ErrInvalid] for an unknown kind.
func (k Kind) Probe(device string) error {
	b, err := k.backend()
	if err != nil {
		return err
	}
	return b.Probe(device)
}

// Arena is the memory behind one pool. Its methods may be called from several goroutines at once.
type Arena interface {
	// Device is where the memory is.
	Device() DeviceInfo
	// Granularity divides the size of every allocation, in bytes; a power of two.
	Granularity() uint64
	// Export is what another process needs once to map allocations of this arena. Its files stay the arena's.
	Export() Export
	// Allocate makes an allocation of size bytes, a multiple of Granularity. Where that takes long, the end of ctx stops it.
	// Errors: ErrOutOfMemory, the context's.
	Allocate(ctx context.Context, size uint64) (Allocation, error)
	// InUse is how many bytes the source of the memory itself says are allocated from it.
	InUse() (uint64, error)
	// Close gives the memory back. Every allocation was freed before, except those that could not be.
	Close() error
}

// Lasting is an [Arena] that clears what is freed, for the next to get it, which those who still have it mapped would see.
type Lasting interface {
	// Last says that nothing will be allocated any more: what is freed now stays as it is for them.
	Last()
}

// NewArena makes the allocator of a pool alone: nobody accounts for what it allocates, shares it or uses it again. It takes memory of
// the CPU through memory. Call it directly only to measure what a kind costs.
//
// Errors: [ErrInvalid], [ErrUnavailable] where this machine cannot do it, [ErrOutOfMemory].
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

// adviseWithoutGPU says what to do where err is that there is no driver or no GPU.
func adviseWithoutGPU(err error) error {
	if !errors.Is(err, cuda.ErrNoDriver) && !errors.Is(err, cuda.ErrNoDevice) {
		return err
	}
	return fmt.Errorf("%w; without a GPU use kind %q, and `poolsvc doctor` says what is missing", err, string(Host))
}

// Allocation is one piece of memory from an [Arena].
type Allocation interface {
	Memory
	// Export is what another process needs to map this allocation. Its files stay the allocation's.
	Export() (Export, error)
	// Free gives the memory back to the arena. After an error the arena still counts it, and Free may be called again.
	Free() error
}

// ImportedArena is an arena of another process, opened in this one.
type ImportedArena interface {
	// Import takes one allocation of size bytes. Errors: ErrInvalid for an export that is none, or of fewer bytes.
	Import(x Export, size uint64) (Mapping, error)
	// Reach lets another GPU (an ordinal or a UUID) reach what is and will be mapped, from this process. It is not called
	// for another GPU where the kind maps pools for each anew. Errors: ErrUnavailable, naming both GPUs, where the hardware
	// does not let it.
	Reach(device string) error
	// Close ends it. Every mapping was closed before.
	Close() error
}

// Mapping is an allocation of another process, imported into this one.
type Mapping interface {
	// Memory is the allocation mapped to be read, or to be read and written: each is mapped when it is first asked for.
	// Where the kind cannot be mapped read-only they are the same.
	Memory(write bool) (Memory, error)
	// Close unmaps it.
	Close() error
}

// Memory is memory that this process can reach. Offsets are in bytes from its start; the caller has checked them.
type Memory interface {
	// CopyFrom copies src to the memory at off; when it returns, src may be used again. The data is there for what comes
	// next in the memory's queue.
	CopyFrom(off uint64, src []byte) error
	// CopyTo copies the memory at off to dst, after what is in the memory's queue, and returns when dst is filled.
	CopyTo(dst []byte, off uint64) error
	// Fill sets n bytes at off to b, with CopyFrom's guarantee.
	Fill(off, n uint64, b byte) error
	// Bytes is the memory as the CPU sees it, nil where it cannot reach it.
	Bytes() []byte
	// Pointer is the memory's address: a CUDA device pointer for memory on a GPU.
	Pointer() uintptr
	// Queue is where this package does its work on the memory. It must be done before the memory is freed or unmapped.
	Queue() Queue
	// Synchronize returns when all work that this package started on the memory is done. A transfer does not need it:
	// see [Clock.Signal].
	Synchronize() error
}

// Export is what one process gives another so that it can map a pool or a block.
type Export struct {
	// Data is what the kind defines.
	Data []byte
	// Files go along with Data, in order.
	Files []*os.File
}

// DeviceInfo names the device of a pool.
type DeviceInfo struct {
	// Ordinal as this process numbers devices; −1 where there is no device.
	Ordinal int
	// UUID, "GPU-xxxxxxxx-…", the same in every process; empty where there is no device.
	UUID string
}

// NoDevice is the DeviceInfo of memory that belongs to no GPU.
var NoDevice = DeviceInfo{Ordinal: -1}
