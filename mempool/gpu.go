package mempool

import (
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// gpu is a GPU that this process uses, with the GPU's context and two streams. This process allocates and frees memory in the stream
// `stream`; work in this stream never waits for other processes. All other work on the memory is in the stream `deviceStream`.
type gpu struct {
	device       cuda.Device
	info         DeviceInfo
	ctx          *cuda.Context
	stream       *cuda.Stream
	deviceStream *deviceStream
}

func openGPU(d cuda.Device) (*gpu, error) {
	uuid, err := d.UUID()
	if err != nil {
		return nil, deviceError("read the GPU's UUID", err)
	}
	ctx, err := d.Retain()
	if err != nil {
		return nil, deviceError(fmt.Sprintf("use GPU %d", d.Ordinal()), err)
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return nil, errors.Join(deviceError("make a stream", err), insist(ctx.Close))
	}
	deviceStream, err := openDeviceStream(d)
	if err != nil {
		return nil, errors.Join(err, insist(stream.Close), insist(ctx.Close))
	}
	return &gpu{device: d, info: DeviceInfo{Ordinal: d.Ordinal(), UUID: uuid.String()}, ctx: ctx, stream: stream, deviceStream: deviceStream}, nil
}

// gpuFor opens the GPU for a new pool. has(d) returns an error if GPU d lacks a feature that the pool needs.
func gpuFor(spec PoolSpec, has func(cuda.Device) error) (*gpu, error) {
	d, err := FindDevice(spec.Device)
	if err != nil {
		return nil, err
	}
	if err := has(d); err != nil {
		return nil, err
	}
	total, err := d.TotalMem()
	if err != nil {
		return nil, deviceError("read the GPU's memory size", err)
	}
	if spec.MaxBytes > total {
		return nil, typed.Errorf(ErrOutOfMemory, "pool %q may take %s, but GPU %d has %s: make a smaller pool", spec.Name, bytesize.Text(spec.MaxBytes),
			d.Ordinal(), bytesize.Text(total))
	}
	return openGPU(d)
}

// gpuOf opens the GPU of another process's pool.
func gpuOf(p PoolInfo) (*gpu, error) {
	d, err := deviceOf(p)
	if err != nil {
		return nil, err
	}
	return openGPU(d)
}

// deviceOf returns the GPU of a pool that another process owns. It finds the GPU by its UUID, because the same GPU may have different
// ordinals in different processes.
func deviceOf(p PoolInfo) (cuda.Device, error) {
	if p.Device.UUID == "" {
		return cuda.Device{}, typed.Errorf(ErrInvalid, "pool %q of kind %q names no GPU", p.Name, p.Kind)
	}
	return FindDevice(p.Device.UUID)
}

// Close releases the GPU.
func (g *gpu) Close() error {
	return errors.Join(g.deviceStream.leave(), deviceError("let go of a GPU", insist(g.letGo)))
}

func (g *gpu) letGo() error {
	return errors.Join(g.stream.Close(), g.ctx.Close())
}

// peer finds a GPU and checks that this GPU can access the memory of g. The parameter `name` is the ordinal or the UUID of the GPU to find.
//
// Errors: [ErrUnavailable] if the hardware does not let the GPU access the memory; the text of the error names both GPUs.
func (g *gpu) peer(name string) (cuda.Device, error) {
	d, err := FindDevice(name)
	if err != nil || d == g.device {
		return d, err
	}
	return d, peerAccess(d, g.device)
}

// peerAccess returns an error if the hardware does not let d access the memory of owner.
func peerAccess(d, owner cuda.Device) error {
	if ok, err := d.CanAccessPeer(owner); err != nil || !ok {
		return unreachable(d, owner, err)
	}
	return nil
}

// unreachable returns the error for a GPU d that cannot access the memory of owner.
func unreachable(d, owner cuda.Device, err error) error {
	text := fmt.Sprintf("GPU %s does not reach the memory of GPU %s", describeGPU(d), describeGPU(owner))
	if err == nil {
		return typed.Errorf(ErrUnavailable, "%s: the hardware has no peer access between them; work on the memory's own GPU, or copy", text)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, text, err)
}

// describeGPU returns a GPU's ordinal, name and UUID.
func describeGPU(d cuda.Device) string {
	name, _ := d.Name()
	uuid, _ := d.UUID()
	return fmt.Sprintf("%d (%s, %s)", d.Ordinal(), name, uuid)
}

// importError wraps an error that the driver returned for an import. If the export has the wrong kind or size, the driver returns one of
// the results in the list below, and importError then adds [ErrInvalid].
func importError(op string, err error) error {
	for _, result := range []cuda.Result{cuda.ErrUnknown, cuda.ErrInvalidDevice, cuda.ErrOperatingSystem, cuda.ErrMapFailed, cuda.ErrNotSupported} {
		if errors.Is(err, result) {
			return fmt.Errorf("%w: %s: this is not what the kind of memory exports, or not of this size: %w", ErrInvalid, op, err)
		}
	}
	return deviceError(op, err)
}
