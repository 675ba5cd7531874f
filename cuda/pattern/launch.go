package pattern

import (
	"time"

	"github.com/poolbridge/poolbridge/cuda"
)

// The shape of a launch. The kernels know the threads.
const (
	threads     = 256            // of a block
	threadBytes = 4 * 16         // that a thread has under way, at most
	blocksEach  = 2048 / threads // that a multiprocessor can hold
)

// grid is enough blocks for so many bytes, and no more than the GPU runs at once: they go on to the next part by
// themselves.
func (k *Kernels) grid(bytes uint64) cuda.Dim3 {
	const blockBytes = threads * threadBytes
	return cuda.Dim3{X: uint32(max(1, min(k.blocks, bytes/blockBytes+1)))}
}

var block = cuda.Dim3{X: threads}

// Fill queues writing n elements of the pattern at ptr.
//
// Errors: cuda.ErrInvalidValue for an address between two elements, [ErrSize] for too many of them.
func (k *Kernels) Fill(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, p Pattern) error {
	if err := k.admit("Kernels.Fill", ptr, n, p); err != nil || n == 0 {
		return err
	}
	return k.launch(s, fillPrefix, ptr, n, p)
}

// Transform queues changing n elements of float32 at ptr.
//
// Errors: as Fill.
func (k *Kernels) Transform(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, t Transform) error {
	if err := k.admit("Kernels.Transform", ptr, n, Affine{Scale: t.Scale, Offset: t.Offset}); err != nil || n == 0 {
		return err
	}
	return k.stream(s).Launch(k.functions[transformName], k.grid(n*4), block, 0, ptr, n, t.Scale, t.Offset)
}

// Spin queues work that does nothing for a time: for tests of order.
func (k *Kernels) Spin(s *cuda.Stream, d time.Duration) error {
	return k.stream(s).Launch(k.functions[spinName], cuda.Dim3{}, cuda.Dim3{}, 0, uint64(max(d, 0)))
}

// Hold queues work that does nothing until the word of eight bytes at gate is no longer 0, for at most a time: for tests of
// what goes on meanwhile. The gate is memory that the CPU writes, pinned or registered.
func (k *Kernels) Hold(s *cuda.Stream, gate cuda.DevicePtr, most time.Duration) error {
	return k.stream(s).Launch(k.functions[holdName], cuda.Dim3{}, cuda.Dim3{}, 0, gate, uint64(max(most, 0)))
}

// admit refuses what the kernels cannot do.
func (k *Kernels) admit(op string, ptr cuda.DevicePtr, n uint64, p Pattern) error {
	if err := p.Validate(); err != nil {
		return k.invalid(op, "%v", err)
	}
	if uint64(ptr)%p.ElementBytes() != 0 {
		return k.invalid(op, "%v is not a multiple of %d", ptr, p.ElementBytes())
	}
	return inRange(p, n)
}

// launch queues one of a pattern's kernels; more are its parameters beyond the pattern's own.
func (k *Kernels) launch(s *cuda.Stream, prefix string, ptr cuda.DevicePtr, n uint64, p Pattern, more ...any) error {
	name, first, params := p.kernel()
	args := append([]any{ptr, first, n}, params...)
	return k.stream(s).Launch(k.functions[prefix+name], k.grid(n*p.ElementBytes()), block, 0, append(args, more...)...)
}
