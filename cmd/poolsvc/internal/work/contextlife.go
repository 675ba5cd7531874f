package work

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// contextLife maps several buffers, compares them, unmaps them, and does so again, in the same context or in a new one
// each time.
func (w *Worker) contextLife(ctx context.Context, t *Task) (a *Answer, err error) {
	if err := w.Close(); err != nil { // whatever keeps a context alive
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
		for _, name := range t.Names { // leased all at once: the leases end with the session
			l, err := w.lease(ctx, t, name, false)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", a.Rounds, name, err)
			}
			w.held = append(w.held, l)
			n, err := l.Tensor().Elements()
			if err == nil {
				err = w.compare(a, l, n, t)
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

// secondContext reads a buffer through a context beside the primary one. A legacy handle, if there is one, is opened in
// it, which the driver refuses: Driver says how.
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
	a = new(Answer)
	if len(t.Handle) > 0 {
		h, err := mempool.ParseLegacyHandle(t.Handle)
		if err != nil {
			return nil, err
		}
		opened, err := h.Open(second, 0)
		if err == nil {
			err = opened.Close()
		}
		a.Driver = failure(err)
		return a, nil
	}
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	ptr, err := l.Pointer()
	if err != nil {
		return nil, err
	}
	here, there := make([]byte, 4096), make([]byte, 4096)
	if err := errors.Join(primary.CopyDtoH(here, cuda.DevicePtr(ptr)), second.CopyDtoH(there, cuda.DevicePtr(ptr))); err != nil {
		return nil, err
	}
	if !bytes.Equal(here, there) {
		return nil, errors.New("the two contexts see different data at one address")
	}
	a.Elements, err = l.Tensor().Elements()
	if err != nil {
		return nil, err
	}
	return a, w.compare(a, l, a.Elements, t)
}
