package pattern

import (
	"time"

	"github.com/poolbridge/poolbridge/cuda"
)

// These constants describe the blocks of a launch. The file kernels.cu must have the same value for `threads`.
const (
	threads     = 256            // threads of a block
	threadBytes = 4 * 16         // most bytes that a thread handles at a time
	blocksEach  = 2048 / threads // blocks that a multiprocessor can hold
)

// grid returns how many blocks a launch uses for memory of this number of bytes: at most as many blocks as the GPU runs at once. A block
// processes one part of the memory at a time, blockBytes long. If the memory has more parts than there are blocks, a block processes several
// parts in a loop.
func (k *Kernels) grid(bytes uint64) cuda.Dim3 {
	const blockBytes = threads * threadBytes
	return cuda.Dim3{X: uint32(max(1, min(k.blocks, bytes/blockBytes+1)))}
}

var block = cuda.Dim3{X: threads}

// Fill queues a kernel that writes n elements of the pattern at ptr.
//
// Errors: cuda.ErrInvalidValue if ptr is not a multiple of the element size or p.Validate returns an error; [ErrSize] if n is too large.
func (k *Kernels) Fill(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, p Pattern) error {
	if err := k.admit("Kernels.Fill", ptr, n, p); err != nil || n == 0 {
		return err
	}
	return k.launch(s, fillPrefix, ptr, n, p)
}

// Transform queues a kernel that changes n elements of float32 at ptr.
//
// Errors: the same as for [Kernels.Fill].
func (k *Kernels) Transform(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, t Transform) error {
	if err := k.admit("Kernels.Transform", ptr, n, Affine{Scale: t.Scale, Offset: t.Offset}); err != nil || n == 0 {
		return err
	}
	return k.stream(s).Launch(k.functions[transformName], k.grid(n*4), block, 0, ptr, n, t.Scale, t.Offset)
}

// Spin queues a kernel that does nothing for the duration d. Tests use Spin to check the order in which the GPU does work.
func (k *Kernels) Spin(s *cuda.Stream, d time.Duration) error {
	return k.stream(s).Launch(k.functions[spinName], cuda.Dim3{}, cuda.Dim3{}, 0, uint64(max(d, 0)))
}

// Hold queues a kernel that runs until the eight-byte word at the address `gate` is not 0. The kernel runs at most for the duration `most`.
// Tests use Hold to keep a stream busy. The word must be in memory that the CPU can write: pinned or registered memory.
func (k *Kernels) Hold(s *cuda.Stream, gate cuda.DevicePtr, most time.Duration) error {
	return k.stream(s).Launch(k.functions[holdName], cuda.Dim3{}, cuda.Dim3{}, 0, gate, uint64(max(most, 0)))
}

// admit returns an error for arguments that the kernels cannot handle.
func (k *Kernels) admit(op string, ptr cuda.DevicePtr, n uint64, p Pattern) error {
	if err := p.Validate(); err != nil {
		return k.invalid(op, "%v", err)
	}
	if uint64(ptr)%p.ElementBytes() != 0 {
		return k.invalid(op, "%v is not a multiple of %d", ptr, p.ElementBytes())
	}
	return inRange(p, n)
}

// launch queues a kernel for the pattern p. The name of the kernel begins with `prefix`. The arguments in `more` are the last arguments of the
// kernel: they come after the arguments for the pattern.
func (k *Kernels) launch(s *cuda.Stream, prefix string, ptr cuda.DevicePtr, n uint64, p Pattern, more ...any) error {
	name, first, params := p.kernel()
	args := append([]any{ptr, first, n}, params...)
	return k.stream(s).Launch(k.functions[prefix+name], k.grid(n*p.ElementBytes()), block, 0, append(args, more...)...)
}
