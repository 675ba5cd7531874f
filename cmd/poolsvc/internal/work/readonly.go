package work

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// forbidden takes a read lease on a buffer, and tries to write the buffer through the lease and with the driver. Then it compares the
// buffer.
func (w *Worker) forbidden(ctx context.Context, t *Task) (a *Answer, err error) {
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	a = &Answer{API: failure(l.CopyFrom(ctx, 0, make([]byte, ElementBytes)))}
	ptr, err := l.Pointer(ctx)
	if err != nil {
		return nil, err
	}
	g, err := w.bench.GPUOf(cuda.DevicePtr(ptr))
	if err != nil {
		return nil, err
	}
	a.Driver = failure(g.Context.CopyHtoD(cuda.DevicePtr(ptr), make([]byte, ElementBytes)))
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	return a, w.compare(ctx, a, l, a.Elements, t)
}

// fault takes a read lease on a buffer, and lets a kernel write the buffer. The driver refuses the write, and after that the process
// cannot use the GPU any more.
func (w *Worker) fault(ctx context.Context, t *Task) (*Answer, error) {
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	n, err := l.Tensor().Elements()
	if err != nil {
		return nil, err
	}
	return &Answer{Driver: failure(w.bench.Fill(ctx, l, n, Affine(0, 0)))}, nil
}

// twice writes a buffer through one mapping and reads it through another mapping in the same process.
func (w *Worker) twice(ctx context.Context, t *Task) (a *Answer, err error) {
	l, err := w.lease(ctx, t, t.Name, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	a = new(Answer)
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	if err := w.bench.Fill(ctx, l, a.Elements, t.Pattern); err != nil {
		return nil, err
	}
	if err := a.pointer(ctx, l); err != nil {
		return nil, err
	}
	// After Publish, the lease uses a second mapping of the buffer. This mapping is read-only.
	if err := l.Publish(ctx, mempool.Publication{Name: t.Name, Replace: true, Keep: true}); err != nil {
		return nil, err
	}
	if err := a.pointer(ctx, l); err != nil {
		return nil, err
	}
	return a, w.compare(ctx, a, l, a.Elements, t)
}

func (a *Answer) pointer(ctx context.Context, l *bridge.Lease) error {
	ptr, err := l.Pointer(ctx)
	a.Pointers = append(a.Pointers, uint64(ptr))
	return err
}
