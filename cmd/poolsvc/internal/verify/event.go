package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// slow is how long the producer's work takes.
const slow = 200 * time.Millisecond

// eventChecks has a consumer wait for an event of the producer.
func eventChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	return each(order, "event", preferred(consumers), func(ctx context.Context, s *scene, consumer string) (err error) {
		d, err := mempool.FindDevice(s.options.Device)
		if err != nil {
			return err
		}
		if ok, err := d.SupportsIPCEvents(); err != nil || !ok {
			return skipf("the GPU has no interprocess events (%v)", err)
		}
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		// Once to make the worker's context, which takes longer than the work.
		for _, duration := range []time.Duration{0, slow} {
			if err := eventOrder(ctx, s, w, consumer, duration); err != nil {
				return err
			}
		}
		return nil
	})
}

// eventOrder starts work that takes a while, records an event and goes on; the worker waits for the event and then
// compares.
func eventOrder(ctx context.Context, s *scene, w *worker, consumer string, duration time.Duration) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	g, err := s.bench.OnDevice(device)
	if err != nil {
		return err
	}
	event, err := g.Context.NewEvent(cuda.EventSpec{Interprocess: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, event.Close()) }()
	handle, err := event.IPCHandle()
	if err != nil {
		return err
	}
	name := s.uniqueName("event")
	undo, err := s.publish(ctx, name, maskedElements, work.Affine(0, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	l, err := s.session.Get(ctx, name, true, 0)
	if err != nil {
		return err
	}
	err = errors.Join(g.Kernels.Spin(g.Stream, duration), s.bench.Queue(g, l, maskedElements, masked(0)), event.Record(g.Stream))
	if err == nil {
		t := mempool.Tensor{DType: mempool.Uint32, Shape: []uint64{maskedElements}}
		err = l.Publish(mempool.Publication{Name: name, Replace: true, Tensor: &t})
	}
	recorded := time.Now()
	// The stream must be done before its event and the memory go.
	defer func() { err = errors.Join(err, g.Stream.Synchronize()) }()
	if err = errors.Join(err, l.Release(false)); err != nil {
		return err
	}
	a, err := w.check(ctx, work.Task{Task: "event", Name: name, Handle: handle[:], Device: device, Pattern: masked(0), Consumer: consumer,
		Elements: maskedElements})
	if err != nil {
		return err
	}
	s.note = fmt.Sprintf("waited %.0f ms for work of %v, %.0f ms after it was queued", a.Waited*1e3, duration, time.Since(recorded).Seconds()*1e3)
	return nil
}
