package work

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// contextLife maps, compares and unmaps several buffers, in several rounds: in one context, or in a new context in each round.
func (w *Worker) contextLife(ctx context.Context, t *Task) (a *Answer, err error) {
	if err := w.Close(); err != nil { // Close releases everything that keeps a context alive
		return nil, err
	}
	if !t.Destroy {
		d, err := mempool.FindDevice(t.Device)
		if err != nil {
			return nil, err
		}
		keep, err := d.Retain()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, keep.Close()) }()
	}
	a = new(Answer)
	for a.Rounds = range t.Rounds {
		for _, name := range t.Names { // the leases are not released one by one: they end with the session
			l, err := w.lease(ctx, t, name, false)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", a.Rounds, name, err)
			}
			w.held = append(w.held, l)
			n, err := l.Tensor().Elements()
			if err == nil {
				err = w.compare(ctx, a, l, n, t)
			}
			if err != nil || a.Mismatches > 0 {
				return a, err
			}
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("end of round %d: %w", a.Rounds, err)
		}
	}
	a.Rounds++
	return a, nil
}

// secondContext compares a buffer with the task's pattern, first in the primary context of the GPU and then in a second context. If the
// task has a legacy handle, secondContext calls handleInSecond instead.
func (w *Worker) secondContext(ctx context.Context, t *Task) (a *Answer, err error) {
	d, err := mempool.FindDevice(t.Device)
	if err != nil {
		return nil, err
	}
	primary, err := d.Retain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, primary.Close()) }()
	second, err := d.NewContext()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	p, err := t.Pattern.pattern()
	if err != nil {
		return nil, err
	}
	if len(t.Handle) > 0 {
		return handleInSecond(primary, second, t, p)
	}
	a = new(Answer)
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	ptr, err := l.Pointer(ctx)
	if err != nil {
		return nil, err
	}
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	for _, c := range []*cuda.Context{primary, second} {
		seen, err := verifyIn(c, cuda.DevicePtr(ptr), a.Elements, p)
		if err != nil {
			return nil, err
		}
		a.Mismatches += seen.Count
	}
	return a, nil
}

// handleInSecond tries twice to open a legacy handle in a second context. At the first try, the handle is still open in
// the primary context, so the driver must refuse: the field Driver of the answer has the driver's error. Then the
// primary context closes the handle. The second try must succeed.
func handleInSecond(primary, second *cuda.Context, t *Task, p pattern.Pattern) (a *Answer, err error) {
	h, err := mempool.ParseLegacyHandle(t.Handle)
	if err != nil {
		return nil, err
	}
	size := t.Elements * ElementBytes
	a = &Answer{Elements: t.Elements}
	first, err := h.Open(primary, size)
	if err != nil {
		return nil, err
	}
	again, refused := h.Open(second, size)
	if refused == nil {
		err = again.Close()
	}
	a.Driver = failure(refused)
	if err := errors.Join(err, first.Close()); err != nil {
		return nil, err
	}
	opened, err := h.Open(second, size)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	seen, err := verifyIn(second, opened.Ptr(), t.Elements, p)
	a.Mismatches = seen.Count
	return a, err
}

// verifyIn compares memory with a pattern. To do so, it runs a kernel in the context c. It does not copy the memory to the CPU, because ptr
// may be the address that the GPU uses for memory of the host: the driver copies memory of the host only if it gets the address that the
// CPU uses.
func verifyIn(c *cuda.Context, ptr cuda.DevicePtr, n uint64, p pattern.Pattern) (seen pattern.Report, err error) {
	kernels, err := pattern.Load(c)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, kernels.Close()) }()
	return kernels.Verify(nil, ptr, n, p)
}
