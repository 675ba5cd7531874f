package work

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

// both uses one lease with both processors: the GPU writes and the CPU compares, then the CPU writes and the GPU compares.
func (w *Worker) both(ctx context.Context, t *Task) (a *Answer, err error) {
	l, err := w.lease(ctx, t, t.Name, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(err != nil)) }()
	a = new(Answer)
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	if err := a.pointer(ctx, l); err != nil {
		return nil, err
	}
	mem, err := l.Bytes(ctx)
	if err != nil {
		return nil, err
	}
	if mem == nil {
		return nil, errors.New("the CPU cannot access the memory")
	}
	g, err := w.bench.GPUOf(cuda.DevicePtr(a.Pointers[0]))
	if err != nil {
		return nil, err
	}
	first, err := t.Pattern.pattern()
	if err != nil {
		return nil, err
	}
	second, err := t.Then.pattern()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(w.bench.Queue(ctx, g, l, a.Elements, t.Pattern), g.Stream.Synchronize()); err != nil {
		return nil, err
	}
	seen, err := pattern.Verify(mem, first)
	if err == nil {
		err = seen.Err()
	}
	if err == nil {
		err = pattern.Fill(mem, second)
	}
	if err == nil {
		seen, err = g.Kernels.Verify(g.Stream, cuda.DevicePtr(a.Pointers[0]), a.Elements, second)
	}
	a.Mismatches = seen.Count
	a.Written = err == nil
	return a, err
}
