package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// memory is memory that a check writes and compares: the elements of a lease, or memory without a lease.
type memory struct {
	cpu      []byte // nil if the CPU cannot access the memory
	ptr      cuda.DevicePtr
	elements uint64
}

// memoryOf returns the elements of a lease. It waits until they may be used.
func memoryOf(ctx context.Context, l *bridge.Lease) (memory, error) {
	cpu, err := l.Bytes(ctx)
	if err != nil {
		return memory{}, err
	}
	m, err := addressOf(ctx, l)
	if err == nil && cpu != nil {
		t := l.Tensor()
		if t.Arrays != nil {
			t = t.Arrays[0].Tensor
		}
		m.cpu = cpu[t.ByteOffset:][:m.elements*t.DType.ItemSize()]
	}
	return m, err
}

// addressOf returns the elements of a lease, for kernels. It does not wait if a stream was made to wait with [bridge.Lease.WaitOn].
func addressOf(ctx context.Context, l *bridge.Lease) (m memory, err error) {
	address, err := l.Pointer(ctx)
	if err != nil {
		return m, err
	}
	t := l.Tensor()
	m.ptr = cuda.DevicePtr(address) + cuda.DevicePtr(t.ByteOffset)
	arrays := []mempool.NamedTensor{{Tensor: t}}
	if t.Arrays != nil {
		arrays = t.Arrays // those of a pattern in halves, which lie one behind the other
	}
	for _, a := range arrays {
		n, err := a.Tensor.Elements()
		if err != nil {
			return m, err
		}
		m.elements += n
	}
	return m, nil
}

// gpus writes patterns to memory of any kind, and compares memory with patterns. It uses kernels if a GPU has the memory, and the CPU
// otherwise.
type gpus struct {
	// device names the GPU whose kernels are used; empty: the GPU that has the memory, or the CPU if it can access the memory.
	device string

	mu     sync.Mutex
	opened map[cuda.Device]*gpu
}

// gpu is a GPU with a stream and the kernels.
type gpu struct {
	context *cuda.Context
	stream  *cuda.Stream
	queue   mempool.Queue // the stream as a queue for leases
	kernels *pattern.Kernels
}

// fill writes a pattern to the memory.
func (g *gpus) fill(m memory, p *Pattern) error {
	if m.cpu != nil && g.device == "" {
		return pattern.Fill(m.cpu, p.content())
	}
	d, err := g.of(m)
	if err != nil {
		return err
	}
	return errors.Join(d.fill(m, p), d.stream.Synchronize())
}

// fill queues a kernel that writes a pattern.
func (g *gpu) fill(m memory, p *Pattern) error {
	return g.kernels.Fill(g.stream, m.ptr, p.Elements, p.content())
}

// compare returns an error that names the first differences unless the memory contains the pattern. If then is not nil, compare writes it
// after the comparison.
func (g *gpus) compare(m memory, p, then *Pattern) (err error) {
	if m.elements != p.Elements {
		return fmt.Errorf("there are %d elements, not %d", m.elements, p.Elements)
	}
	var found pattern.Report
	if m.cpu != nil && g.device == "" {
		found, err = pattern.Verify(m.cpu, p.content())
	} else {
		var d *gpu
		if d, err = g.of(m); err == nil {
			found, err = d.kernels.Verify(d.stream, m.ptr, p.Elements, p.content())
		}
	}
	if err == nil {
		err = found.Err()
	}
	if err == nil && then != nil {
		err = g.fill(m, then)
	}
	return err
}

// of returns the GPU whose kernels work on the memory.
func (g *gpus) of(m memory) (*gpu, error) {
	if g.device != "" {
		return g.named(g.device)
	}
	first, err := g.named("0")
	if err != nil {
		return nil, err
	}
	about, err := first.context.PointerAttributes(m.ptr)
	if err != nil || about.Ordinal == 0 {
		return first, err
	}
	return g.named(fmt.Sprint(about.Ordinal))
}

// named returns the GPU with this ordinal or UUID.
func (g *gpus) named(name string) (_ *gpu, err error) {
	d, err := mempool.FindDevice(name)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.opened[d]; known != nil {
		return known, nil
	}
	made := new(gpu)
	if made.context, err = d.Retain(); err != nil {
		return nil, err
	}
	if made.stream, err = made.context.NewStream(); err != nil {
		return nil, errors.Join(err, made.context.Close())
	}
	if made.kernels, err = pattern.Load(made.context); err != nil {
		return nil, errors.Join(err, made.stream.Close(), made.context.Close())
	}
	made.queue = mempool.StreamQueue(made.context, made.stream)
	if g.opened == nil {
		g.opened = make(map[cuda.Device]*gpu)
	}
	g.opened[d] = made
	return made, nil
}

// close gives up the GPUs. gpus can be used again afterwards.
func (g *gpus) close() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.opened {
		err = errors.Join(err, d.kernels.Close(), d.stream.Close(), d.context.Close())
	}
	g.opened = nil
	return err
}

// mostHeld is the longest time that a gate holds work. If a call of the library waits for the work, it waits as long as this, and the check
// fails.
const mostHeld = time.Minute

// gate holds work in a GPU's stream until the gate is opened.
type gate struct {
	gpu  *gpu
	word *cuda.Pinned // 0: closed
}

// newGate makes a closed gate. It also runs once each kernel that a check queues while the gate is closed, because the driver loads a
// kernel at its first run, and loading may wait for held kernels.
func (g *gpu) newGate() (*gate, error) {
	word, err := g.context.NewPinned(8)
	if err != nil {
		return nil, err
	}
	clear(word.Bytes())
	_, err = g.kernels.Verify(g.stream, word.DevicePtr(), 2, pattern.Masked{})
	err = errors.Join(err, g.kernels.Hold(g.stream, word.DevicePtr(), 0), g.kernels.Spin(g.stream, 0), g.stream.Synchronize())
	if err != nil {
		return nil, errors.Join(err, word.Close())
	}
	return &gate{g, word}, nil
}

// hold queues a kernel that waits until the gate is open, and a second kernel that runs for the time `takes`.
func (g *gate) hold(takes time.Duration) error {
	k, s := g.gpu.kernels, g.gpu.stream
	return errors.Join(k.Hold(s, g.word.DevicePtr(), mostHeld), k.Spin(s, takes))
}

// open lets the held work continue.
func (g *gate) open() { binary.NativeEndian.PutUint64(g.word.Bytes(), 1) }

// close opens the gate, and waits until the stream has done all its work.
func (g *gate) close() error {
	g.open()
	return errors.Join(g.gpu.stream.Synchronize(), g.word.Close())
}
