package mempool

import "github.com/poolbridge/poolbridge/cuda"

// deviceMemory is memory on a GPU. All work that this package does on the memory is in the [deviceStream] of the GPU.
type deviceMemory struct {
	*gpu
	ptr  cuda.DevicePtr
	size uint64
}

func (m deviceMemory) CopyFrom(off uint64, src []byte) error {
	return deviceError("copy to the GPU", m.deviceStream.copyFrom(m.ptr+cuda.DevicePtr(off), src))
}

func (m deviceMemory) CopyTo(dst []byte, off uint64) error {
	return deviceError("copy from the GPU", m.deviceStream.copyTo(dst, m.ptr+cuda.DevicePtr(off)))
}

func (m deviceMemory) Fill(off, n uint64, b byte) error {
	return deviceError("fill on the GPU", m.deviceStream.stream.Memset8(m.ptr+cuda.DevicePtr(off), b, n))
}

func (m deviceMemory) Bytes() []byte    { return nil }
func (m deviceMemory) Pointer() uintptr { return uintptr(m.ptr) }
func (m deviceMemory) Queue() Queue     { return m.deviceStream.queue }

func (m deviceMemory) Synchronize() error {
	return deviceError("wait for the GPU", m.deviceStream.stream.Synchronize())
}
