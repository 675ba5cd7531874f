package driverfacts_test

import (
	"bytes"

	"github.com/poolbridge/poolbridge/cuda"
)

// These operations of a worker use memory, no matter how the memory was allocated.
func init() {
	operations["fill"] = with(func(w *worker, c call) (reply, error) {
		if err := w.stream.Memset8(cuda.DevicePtr(c.Ptr), uint8(c.Value), c.Size); err != nil {
			return reply{}, err
		}
		return reply{}, w.stream.Synchronize()
	})
	operations["copy in"] = with(func(w *worker, c call) (reply, error) {
		return reply{}, w.ctx.CopyHtoD(cuda.DevicePtr(c.Ptr), c.Data)
	})
	operations["is"] = with(func(w *worker, c call) (reply, error) {
		b := make([]byte, c.Size)
		if err := w.ctx.CopyDtoH(b, cuda.DevicePtr(c.Ptr)); err != nil {
			return reply{}, err
		}
		return reply{OK: bytes.Count(b, []byte{byte(c.Value)}) == len(b), Data: b[:min(len(b), 16)]}, nil
	})
	operations["free memory"] = with(func(w *worker, _ call) (reply, error) {
		free, _, err := w.ctx.MemInfo()
		return reply{Size: free}, err
	})
	operations["synchronize"] = with(func(w *worker, _ call) (reply, error) {
		return reply{}, w.stream.Synchronize()
	})
	operations["idle"] = with(func(w *worker, _ call) (reply, error) {
		done, err := w.stream.Query()
		return reply{OK: done}, err
	})
	operations["forget context"] = with(func(w *worker, _ call) (reply, error) {
		if err := w.stream.Close(); err != nil {
			return reply{}, err
		}
		err := w.ctx.Close()
		w.ctx, w.stream = nil, nil
		return reply{}, err
	})
	operations["cpu fill"] = with(func(_ *worker, c call) (reply, error) {
		b := cuda.DevicePtr(c.Ptr).HostBytes(c.Size)
		for i := range b {
			b[i] = byte(c.Value)
		}
		return reply{}, nil
	})
	operations["cpu is"] = with(func(_ *worker, c call) (reply, error) {
		b := cuda.DevicePtr(c.Ptr).HostBytes(c.Size)
		return reply{OK: bytes.Count(b, []byte{byte(c.Value)}) == len(b)}, nil
	})
}

// fill makes the worker fill memory with the value v, and wait until the memory is filled.
func (p *process) fill(ptr, size uint64, v byte) error {
	p.t.Helper()
	_, err := p.do(call{Op: "fill", Ptr: ptr, Size: size, Value: uint64(v)})
	return err
}

// is reports whether the worker's device finds the value v in every byte of the memory.
func (p *process) is(ptr, size uint64, v byte) bool {
	p.t.Helper()
	return p.must(call{Op: "is", Ptr: ptr, Size: size, Value: uint64(v)}).OK
}
