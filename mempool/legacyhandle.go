package mempool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// ErrOwnerDead is joined with [ErrUnavailable] if the process that owns the memory of a legacy handle is gone. The memory is then gone too.
var ErrOwnerDead = errors.New("the process that owns the memory is gone")

// ErrSecondContext is joined with [ErrUnavailable] if the driver refuses to open a legacy handle in a context that is not the primary
// context of the GPU. The driver refuses as long as memory of the same block is open in the primary context.
var ErrSecondContext = errors.New("not in a second context")

// HandleBytes is the length of the driver's handle, and LegacyHandleBytes is the length of a [LegacyHandle], both in bytes.
const (
	HandleBytes       = len(cuda.IPCMemHandle{})
	LegacyHandleBytes = HandleBytes + 8
)

// LegacyHandle identifies memory, so that other processes can open the memory. The handle works as long as the process that owns the memory
// lives. The driver's handle identifies a whole block of the driver, so the LegacyHandle also has the offset of the memory in this block.
type LegacyHandle struct {
	Handle cuda.IPCMemHandle
	// Offset is the offset of the memory from the beginning of the block, in bytes.
	Offset uint64
}

// AppendBinary appends the 72 bytes of h to the slice b: the 64 bytes of the driver's handle, and the 8 bytes of the offset in
// little-endian order.
func (h LegacyHandle) AppendBinary(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(append(b, h.Handle[:]...), h.Offset)
}

// ParseLegacyHandle reads the 72 bytes that AppendBinary wrote, or the 64 bytes of a driver's handle. If b has only the 64 bytes of the
// handle, the offset is 0.
//
// Errors: [ErrInvalid].
func ParseLegacyHandle(b []byte) (h LegacyHandle, err error) {
	switch len(b) {
	case LegacyHandleBytes:
		h.Offset = binary.LittleEndian.Uint64(b[HandleBytes:])
	case HandleBytes:
	default:
		return h, typed.Errorf(ErrInvalid, "a legacy handle has %d bytes, or %d with the offset, not %d", HandleBytes, LegacyHandleBytes, len(b))
	}
	copy(h.Handle[:], b)
	return h, nil
}

// Open maps `size` bytes of the memory that the handle identifies. If `size` is 0, Open maps the block from the offset to the end. This
// process can open memory of the same block several times: the driver unmaps the block only when each OpenedHandle of the block is closed.
//
// Errors: [ErrUnavailable] with [ErrOwnerDead] or [ErrSecondContext], and [ErrUnavailable] alone if this process owns the memory;
// [ErrInvalid] for bytes that are not a handle, and if the memory would lie outside of the block.
func (h LegacyHandle) Open(ctx *cuda.Context, size uint64) (*OpenedHandle, error) {
	base, err := ctx.OpenIPCMem(h.Handle)
	if err != nil {
		return nil, h.openError(ctx, err)
	}
	_, total, err := ctx.AddressRange(base)
	err = deviceError("find the end of a legacy handle's memory", err)
	if err == nil && (h.Offset > total || size > total-h.Offset) {
		err = typed.Errorf(ErrInvalid, "%d bytes at %d lie outside the block of %d that the handle opens", size, h.Offset, total)
	}
	if err != nil {
		return nil, errors.Join(err, insist(func() error { return ctx.CloseIPCMem(base) }))
	}
	if size == 0 {
		size = total - h.Offset
	}
	o := &OpenedHandle{ptr: base + cuda.DevicePtr(h.Offset), size: size}
	o.end = untilDone(func() error { return deviceError("close a legacy handle", ctx.CloseIPCMem(base)) })
	o.forgotten = runtime.AddCleanup(o, func(end func() error) { _ = end() }, o.end)
	return o, nil
}

// openError returns the error for a handle that the driver did not open. The driver returns the same result in two cases: the owner is
// dead, or the block is already open in the primary context and ctx is another context. openError finds out which case it is.
func (h LegacyHandle) openError(ctx *cuda.Context, err error) error {
	if errors.Is(err, cuda.ErrInvalidHandle) && !ctx.Primary() {
		if opens, failed := h.opensInPrimary(ctx.Device()); opens {
			return errors.Join(fmt.Errorf("%w: %w: memory of the same block is open in the primary context of the device; close it there, "+
				"or open this handle there too: %w", ErrUnavailable, ErrSecondContext, err), failed)
		}
	}
	switch {
	case errors.Is(err, cuda.ErrInvalidHandle):
		return fmt.Errorf("%w: %w: a legacy handle is good only while its process lives; get a new one: %w", ErrUnavailable, ErrOwnerDead, err)
	case errors.Is(err, cuda.ErrInvalidContext):
		return fmt.Errorf("%w: a legacy handle cannot be opened in the process that owns the memory: use its address: %w", ErrUnavailable, err)
	}
	return importError("open a legacy handle", err)
}

// opensInPrimary reports whether the device's primary context can open a handle that another context could not open. If `opens` is true,
// the owner is alive. An error means that opensInPrimary could not close the handle or the primary context afterwards.
func (h LegacyHandle) opensInPrimary(d cuda.Device) (opens bool, err error) {
	primary, err := d.Retain()
	if err != nil {
		return false, nil // the primary context does not open the handle either
	}
	defer func() { err = errors.Join(err, primary.Close()) }()
	base, err := primary.OpenIPCMem(h.Handle)
	if err != nil {
		return false, nil
	}
	return true, insist(func() error { return primary.CloseIPCMem(base) })
}

// OpenedHandle is memory of another process that this process has opened by a legacy handle. If a program drops its last pointer to an
// OpenedHandle without a call of Close, the garbage collector closes the OpenedHandle.
type OpenedHandle struct {
	ptr       cuda.DevicePtr
	size      uint64
	end       func() error
	forgotten runtime.Cleanup
}

// Ptr returns the memory's address on the GPU.
func (o *OpenedHandle) Ptr() cuda.DevicePtr { return o.ptr }

// Size returns the memory's size in bytes.
func (o *OpenedHandle) Size() uint64 { return o.size }

// Close unmaps the memory. All work that uses the memory must be done before the call. If Close fails, the caller can call it again. If
// Close has succeeded, later calls do nothing.
func (o *OpenedHandle) Close() error {
	o.forgotten.Stop()
	return o.end()
}

// untilDone returns a function that calls f, and that does nothing once f has succeeded.
func untilDone(f func() error) func() error {
	var mu sync.Mutex
	done := false
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return nil
		}
		err := f()
		done = err == nil
		return err
	}
}
