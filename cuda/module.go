package cuda

import (
	"fmt"
	"math"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Module is a set of kernels that are loaded into a context.
type Module struct {
	owned
	handle uintptr
}

// Function is one kernel of a module.
type Function struct {
	module *Module
	handle uintptr
}

// LoadModule compiles PTX code and loads the result.
//
// Errors: ErrInvalidPTX or another error of the compiler (the field Detail of the [*Error] has the compiler's text); ErrUnsupportedPTXVersion if
// the driver is too old for the version of the PTX.
func (c *Context) LoadModule(ptx []byte) (*Module, error) {
	const op = "Context.LoadModule"
	if err := c.enter(op); err != nil {
		return nil, err
	}
	image := append(append(make([]byte, 0, len(ptx)+1), ptx...), 0) // the driver needs a zero at the end
	h, log, st := driver.ModuleLoad(c.handle, image)
	if st != 0 {
		defer c.leave()
		return nil, newError(st, op, c.device.ordinal, log)
	}
	m := &Module{handle: h}
	m.own(c, op, func() error { return c.fail(driver.ModuleUnload(c.handle, h), "Module.Close") })
	return m, nil
}

// Close unloads the module and its functions. Before the call, all launches of these functions must be done.
func (m *Module) Close() error { return m.close() }

// Function returns the kernel with this name.
//
// Errors: ErrNotFound.
func (m *Module) Function(name string) (*Function, error) {
	const op = "Module.Function"
	if err := m.enter(op); err != nil {
		return nil, err
	}
	defer m.leave()
	h, st := driver.ModuleFunction(m.ctx.handle, m.handle, name)
	if st != 0 {
		return nil, newError(st, op, m.ctx.device.ordinal, name)
	}
	return &Function{module: m, handle: h}, nil
}

// Dim3 is the size of a grid in blocks, or the size of a block in threads. If X, Y or Z is 0, it counts as 1.
type Dim3 struct{ X, Y, Z uint32 }

// Launch queues a kernel. sharedBytes is the size of the dynamic shared memory of each block. args are the arguments of the kernel, in the order
// of its parameters. An argument is a DevicePtr, an integer of 4 or 8 bytes, or a float of 4 or 8 bytes. It must have exactly the size of the
// parameter in the kernel.
//
// Errors: ErrInvalidValue if the driver refuses the launch, if an argument has another type, or if there are more than 32 arguments. If the
// kernel fails while it runs, Launch does not return this error: a later call does, for example [Stream.Synchronize].
func (s *Stream) Launch(f *Function, grid, block Dim3, sharedBytes uint32, args ...any) error {
	const op = "Stream.Launch"
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leave()
	if err := f.module.enter(op); err != nil {
		return err
	}
	defer f.module.leave()
	if len(args) > driver.MaxLaunchArgs {
		return invalid(op, s.ctx.device.ordinal, fmt.Sprintf("%d arguments, at most %d are allowed", len(args), driver.MaxLaunchArgs))
	}
	var slots [driver.MaxLaunchArgs]uint64
	for i, a := range args {
		v, ok := slot(a)
		if !ok {
			return invalid(op, s.ctx.device.ordinal,
				fmt.Sprintf("argument %d has the type %T, expected a DevicePtr, or an integer or a float of 4 or 8 bytes", i, a))
		}
		slots[i] = v
	}
	dims := [6]uint32{
		max(grid.X, 1), max(grid.Y, 1), max(grid.Z, 1),
		max(block.X, 1), max(block.Y, 1), max(block.Z, 1),
	}
	return s.fail(driver.Launch(s.ctx.handle, s.handle, f.handle, &dims, sharedBytes, &slots, len(args)), op)
}

// slot returns the bytes of a kernel argument as the low bytes of a 64-bit word.
func slot(a any) (uint64, bool) {
	switch v := a.(type) {
	case DevicePtr:
		return uint64(v), true
	case uint64:
		return v, true
	case int64:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case int32:
		return uint64(uint32(v)), true
	case float64:
		return math.Float64bits(v), true
	case float32:
		return uint64(math.Float32bits(v)), true
	}
	return 0, false
}
