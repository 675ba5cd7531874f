package pattern

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
)

//go:embed kernels.ptx
var ptx []byte

// PTX returns the PTX code of the kernels. A program that does not call [Load] can load this code itself.
func PTX() []byte { return bytes.Clone(ptx) }

// These constants name kernels in the PTX code. The first two constants are prefixes: the name of a kernel is such a prefix, followed by the
// name of a pattern.
const (
	fillPrefix    = "poolbridge_fill_"
	verifyPrefix  = "poolbridge_verify_"
	transformName = "poolbridge_transform_affine_f32"
	spinName      = "poolbridge_spin"
	holdName      = "poolbridge_hold"
)

// patterns has one pattern of each type that has kernels.
var patterns = []Pattern{Affine{}, Masked{}, Frame{}, Fibonacci{}}

// Kernels fills, transforms and verifies memory with a GPU. The functions Fill and Verify and the method [Transform.Apply] do the same with the
// CPU. Several goroutines may use the same Kernels at the same time.
//
// The parameters ptr and n of a method are the address of the memory and the number of its elements. The address must be a multiple of the
// element size. If the GPU cannot access the memory, the kernel fails, and then all later calls in the context fail too. If the parameter s is
// nil, the method uses the legacy default stream.
type Kernels struct {
	ctx       *cuda.Context // retained by Load, so that the caller may close its own context first
	module    *cuda.Module
	functions map[string]*cuda.Function
	legacy    *cuda.Stream // used if the caller passes nil as the stream
	blocks    uint64       // greatest number of blocks of a grid
	results   *results
	close     func() error
}

// Load lets the driver compile the kernels for the GPU of the context. The driver may take the compiled kernels from its cache.
//
// Errors: cuda.ErrNotSupported if the driver cannot run kernels, cuda.ErrJITCompilerNotFound and other errors of the compiler.
func Load(ctx *cuda.Context) (_ *Kernels, err error) {
	k := &Kernels{functions: map[string]*cuda.Function{}}
	k.close = sync.OnceValue(k.end)
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	device := ctx.Device()
	processors, err := device.Attribute(cuda.AttrMultiprocessorCount)
	if err != nil {
		return nil, err
	}
	k.blocks = uint64(max(processors, 1)) * blocksEach
	if k.ctx, err = device.Retain(); err != nil {
		return nil, err
	}
	if k.legacy, err = k.ctx.WrapStream(0); err != nil {
		return nil, err
	}
	if k.module, err = k.ctx.LoadModule(ptx); err != nil {
		return nil, err
	}
	if err = k.find(); err != nil {
		return nil, err
	}
	if k.results, err = newResults(k.ctx); err != nil {
		return nil, err
	}
	return k, nil
}

// find looks up every kernel, so that Load fails if a kernel is missing.
func (k *Kernels) find() error {
	names := []string{transformName, spinName, holdName}
	for _, p := range patterns {
		name, _, _ := p.kernel()
		names = append(names, fillPrefix+name, verifyPrefix+name)
	}
	for _, name := range names {
		f, err := k.module.Function(name)
		if err != nil {
			return err
		}
		k.functions[name] = f
	}
	return nil
}

// Close unloads the kernels. It waits until all verifications have ended. The caller must call it only when all other work of the kernels is
// done.
func (k *Kernels) Close() error { return k.close() }

// end undoes the steps of Load that succeeded.
func (k *Kernels) end() error {
	var errs []error
	if k.results != nil {
		errs = append(errs, k.results.close())
	}
	if k.module != nil {
		errs = append(errs, k.module.Close())
	}
	if k.legacy != nil {
		errs = append(errs, k.legacy.Close())
	}
	if k.ctx != nil {
		errs = append(errs, k.ctx.Close())
	}
	return errors.Join(errs...)
}

// stream returns s, or the legacy stream if s is nil.
func (k *Kernels) stream(s *cuda.Stream) *cuda.Stream {
	if s == nil {
		return k.legacy
	}
	return s
}

// invalid returns the error for an argument that this package refused before it called the driver.
func (k *Kernels) invalid(op, format string, args ...any) error {
	return &cuda.Error{Op: "pattern." + op, Device: k.ctx.Device().Ordinal(), Result: cuda.ErrInvalidValue, Detail: fmt.Sprintf(format, args...)}
}
