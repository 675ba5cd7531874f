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

// PTX is the kernels' code, for programs that load it without this package.
func PTX() []byte { return bytes.Clone(ptx) }

// The patterns' and other kernels' names in the PTX begin with these.
const (
	fillPrefix    = "poolbridge_fill_"
	verifyPrefix  = "poolbridge_verify_"
	transformName = "poolbridge_transform_affine_f32"
	spinName      = "poolbridge_spin"
	holdName      = "poolbridge_hold"
)

// patterns has one of every kind that there are kernels for.
var patterns = []Pattern{Affine{}, Masked{}, Frame{}, Fibonacci{}}

// Kernels does on a GPU what the package does on the CPU. It is safe for concurrent use.
//
// Memory is named by its address and a count of elements; it begins at a multiple of the element's size, and any memory
// that the GPU reaches will do. Elements that are out of reach are an error of the context, as with any kernel. A nil
// stream is the legacy default stream.
type Kernels struct {
	ctx       *cuda.Context // of our own, so that the caller's may be closed first
	module    *cuda.Module
	functions map[string]*cuda.Function
	legacy    *cuda.Stream // what a nil stream stands for
	blocks    uint64       // of a grid, at most
	results   *results
	close     func() error
}

// Load compiles the kernels for the context's GPU, or takes them from the driver's cache.
//
// Errors: cuda.ErrNotSupported on a driver that has no kernels, cuda.ErrJITCompilerNotFound and the like.
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

// find looks up every kernel, so that a missing one shows at once.
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

// Close unloads the kernels. It waits for verifications; whatever else was launched must be done.
func (k *Kernels) Close() error { return k.close() }

// end undoes as much of Load as was done.
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

// stream is the one to use for s.
func (k *Kernels) stream(s *cuda.Stream) *cuda.Stream {
	if s == nil {
		return k.legacy
	}
	return s
}

// invalid is the error for an argument that was refused before the driver saw it.
func (k *Kernels) invalid(op, format string, args ...any) error {
	return &cuda.Error{Op: "pattern." + op, Device: k.ctx.Device().Ordinal(), Result: cuda.ErrInvalidValue, Detail: fmt.Sprintf(format, args...)}
}
