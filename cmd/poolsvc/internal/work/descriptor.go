package work

import (
	"context"
	"encoding/binary"
	"errors"
	"unsafe"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// placed is memory of a GPU without a lease, in the form that Bench needs.
type placed struct {
	ptr  cuda.DevicePtr
	size uint64
}

func (p placed) Info() mempool.LeaseInfo                  { return mempool.LeaseInfo{Tensor: mempool.Bytes(p.size)} }
func (p placed) Bytes(context.Context) ([]byte, error)    { return nil, nil }
func (p placed) Pointer(context.Context) (uintptr, error) { return uintptr(p.ptr), nil }

// imported is memory whose descriptor the worker received over a socket.
type imported struct {
	placed
	end func() error
}

// descriptorOpen connects to a socket, and receives the size and the file descriptor of an allocation. Then it maps the allocation,
// compares the memory and changes the memory. The worker needs no service for this task. The memory stays mapped until the worker does the
// task "descriptor-close".
func (w *Worker) descriptorOpen(ctx context.Context, t *Task) (a *Answer, err error) {
	conn, err := seqpacket.Dial(ctx, t.Path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	size := make([]byte, 8)
	n, fds, err := conn.Recv(size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fds.Close()) }() // after the import, the descriptor is not needed any more
	if n != len(size) || fds.Len() != 1 {
		return nil, errors.New("expected the size of an allocation, in 8 bytes, and its descriptor")
	}
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	fd := fds.Next()
	defer func() { err = errors.Join(err, fd.Close()) }()
	physical, err := g.Context.ImportPhysical(fd.Raw(), binary.LittleEndian.Uint64(size))
	if err != nil {
		return nil, err
	}
	mapping, err := g.Context.MapPhysical(physical, cuda.AccessReadWrite)
	if err != nil {
		return nil, errors.Join(err, physical.Close())
	}
	w.imported = &imported{placed{mapping.Ptr(), mapping.Size()}, func() error { return errors.Join(mapping.Close(), physical.Close()) }}
	w.kept = append(w.kept, w.closeImported)
	a = &Answer{Elements: t.Elements}
	return a, w.compare(ctx, a, w.imported.placed, t.Elements, t)
}

// descriptorClose compares the memory once more, and unmaps the memory.
func (w *Worker) descriptorClose(ctx context.Context, t *Task) (*Answer, error) {
	if w.imported == nil {
		return nil, errors.New("no descriptor was opened")
	}
	a := &Answer{Elements: t.Elements}
	err := w.compare(ctx, a, w.imported.placed, t.Elements, t)
	return a, errors.Join(err, w.closeImported())
}

func (w *Worker) closeImported() error {
	i := w.imported
	if i == nil {
		return nil
	}
	w.imported = nil
	return i.end()
}

// refused asks the driver for handles of memory for which the driver makes no handles, and returns the driver's errors.
func (w *Worker) refused(_ context.Context, t *Task) (a *Answer, err error) {
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	pinned, err := g.Context.NewPinned(ElementBytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pinned.Close()) }()
	pageable := new(uint64)
	a = &Answer{Refused: make(map[string]*Failure)}
	for name, ptr := range map[string]cuda.DevicePtr{
		"pageable": cuda.DevicePtr(uintptr(unsafe.Pointer(pageable))),
		"pinned":   pinned.DevicePtr(),
	} {
		_, err := g.Context.IPCMemHandle(ptr)
		a.Refused[name] = failure(err)
	}
	return a, nil
}
