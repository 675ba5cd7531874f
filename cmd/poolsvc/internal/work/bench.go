package work

import (
	"context"
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// Bench writes patterns to memory of any kind, and checks them. It uses kernels if a GPU has the memory, and the CPU otherwise.
type Bench struct {
	// Device names the GPU that the bench uses: its ordinal or its UUID. If Device is empty, the bench uses the GPU that has the memory.
	Device string

	mu   sync.Mutex
	gpus map[cuda.Device]*GPU
}

// GPU is a GPU with the stream and the kernels that the bench uses.
type GPU struct {
	Context *cuda.Context
	Stream  *cuda.Stream
	Queue   mempool.Queue // the stream as a Queue, for leases
	Kernels *pattern.Kernels
}

// Memory is memory that the bench can write and check: a lease, or memory that this process allocated.
type Memory interface {
	Info() mempool.LeaseInfo
	Bytes(ctx context.Context) ([]byte, error)
	Pointer(ctx context.Context) (uintptr, error)
}

// Fill writes n elements of a pattern at the beginning of the memory's tensor.
func (b *Bench) Fill(ctx context.Context, m Memory, n uint64, p *Pattern) error {
	want, err := p.pattern()
	if err != nil {
		return err
	}
	return b.with(ctx, m, n*want.ElementBytes(), func(mem []byte) error {
		return pattern.Fill(mem, want)
	}, func(g *GPU, ptr cuda.DevicePtr) error {
		return errors.Join(g.Kernels.Fill(g.Stream, ptr, n, want), g.Stream.Synchronize())
	})
}

// Apply applies a transform in place to the first n elements of the memory.
func (b *Bench) Apply(ctx context.Context, m Memory, n uint64, t Transform) error {
	change := pattern.Transform{Scale: t.Scale, Offset: t.Offset}
	return b.with(ctx, m, n*ElementBytes, change.Apply, func(g *GPU, ptr cuda.DevicePtr) error {
		return errors.Join(g.Kernels.Transform(g.Stream, ptr, n, change), g.Stream.Synchronize())
	})
}

// Verify compares the first n elements of the memory with a pattern.
func (b *Bench) Verify(ctx context.Context, m Memory, n uint64, p *Pattern) (r pattern.Report, err error) {
	want, err := p.pattern()
	if err != nil {
		return r, err
	}
	err = b.with(ctx, m, n*want.ElementBytes(), func(mem []byte) error {
		r, err = pattern.Verify(mem, want)
		return err
	}, func(g *GPU, ptr cuda.DevicePtr) error {
		r, err = g.Kernels.Verify(g.Stream, ptr, n, want)
		return err
	})
	return r, err
}

// with calls the function `onCPU`, and passes the first bytes of the tensor, if the CPU can access the memory and Device is empty.
// Otherwise it calls the function `onGPU`.
func (b *Bench) with(ctx context.Context, m Memory, bytes uint64, onCPU func([]byte) error, onGPU func(*GPU, cuda.DevicePtr) error) error {
	off := m.Info().Tensor.ByteOffset
	mem, err := m.Bytes(ctx)
	if err != nil {
		return err
	}
	if mem != nil && b.Device == "" {
		return onCPU(mem[off : off+bytes])
	}
	address, err := m.Pointer(ctx)
	if err != nil {
		return err
	}
	ptr := cuda.DevicePtr(address) + cuda.DevicePtr(off)
	g, err := b.GPUOf(ptr)
	if err != nil {
		return err
	}
	return onGPU(g, ptr)
}

// GPUOf returns the GPU that the bench uses for the memory at the address ptr.
func (b *Bench) GPUOf(ptr cuda.DevicePtr) (*GPU, error) {
	if b.Device != "" {
		d, err := mempool.FindDevice(b.Device)
		if err != nil {
			return nil, err
		}
		return b.gpu(d)
	}
	first, err := cuda.DeviceAt(0)
	if err != nil {
		return nil, err
	}
	g, err := b.gpu(first)
	if err != nil {
		return nil, err
	}
	about, err := g.Context.PointerAttributes(ptr)
	if err != nil || about.Ordinal == 0 {
		return g, err
	}
	d, err := cuda.DeviceAt(about.Ordinal)
	if err != nil {
		return nil, err
	}
	return b.gpu(d)
}

// OnDevice returns the GPU with the ordinal or the UUID `name`.
func (b *Bench) OnDevice(name string) (*GPU, error) {
	d, err := mempool.FindDevice(name)
	if err != nil {
		return nil, err
	}
	return b.gpu(d)
}

func (b *Bench) gpu(d cuda.Device) (*GPU, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.gpus[d]; g != nil {
		return g, nil
	}
	ctx, err := d.Retain()
	if err != nil {
		return nil, err
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	kernels, err := pattern.Load(ctx)
	if err != nil {
		return nil, errors.Join(err, stream.Close(), ctx.Close())
	}
	g := &GPU{ctx, stream, mempool.StreamQueue(ctx, stream), kernels}
	if b.gpus == nil {
		b.gpus = make(map[cuda.Device]*GPU)
	}
	b.gpus[d] = g
	return g, nil
}

// Close releases the GPUs. The bench can be used again after Close.
func (b *Bench) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, g := range b.gpus {
		errs = append(errs, g.Kernels.Close(), g.Stream.Close(), g.Context.Close())
	}
	b.gpus = nil
	return errors.Join(errs...)
}

// Queue queues a kernel that writes a pattern. The memory is memory of a GPU, or memory of the CPU that the GPU can access.
func (b *Bench) Queue(ctx context.Context, g *GPU, m Memory, n uint64, p *Pattern) error {
	want, err := p.pattern()
	if err != nil {
		return err
	}
	ptr, err := m.Pointer(ctx)
	if err != nil {
		return err
	}
	return g.Kernels.Fill(g.Stream, cuda.DevicePtr(ptr)+cuda.DevicePtr(m.Info().Tensor.ByteOffset), n, want)
}
