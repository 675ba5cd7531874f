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

// eventChecks has a consumer wait for work of the producer: by an interprocess event that stands alone, and by a ticket.
func eventChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	checks := each(order, "event", preferred(consumers), awaited(work.ByEvent, cuda.Device.SupportsIPCEvents, "interprocess events"))
	return append(checks, each(order, "ticket", preferred(consumers), awaited(work.ByTicket, cuda.Device.SupportsStreamMemOps,
		"streams that wait for words"))...)
}

// awaited runs a check on GPUs that have what it needs.
func awaited(by string, has func(cuda.Device) (bool, error), what string) func(context.Context, *scene, string) error {
	return func(ctx context.Context, s *scene, consumer string) error {
		d, err := mempool.FindDevice(s.options.Device)
		if err != nil {
			return err
		}
		if ok, err := has(d); err != nil || !ok {
			return skipf("the GPU has no %s (%v)", what, err)
		}
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		// Once to make the worker's context, which takes longer than the work.
		for _, duration := range []time.Duration{0, slow} {
			if err := await(ctx, s, w, consumer, by, duration); err != nil {
				return err
			}
		}
		return nil
	}
}

// await starts work that takes a while, publishes what it has yet to write and goes on; the worker waits for it without a
// look at the data, and then compares.
func await(ctx context.Context, s *scene, w *worker, consumer, by string, duration time.Duration) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	g, err := s.bench.OnDevice(device)
	if err != nil {
		return err
	}
	name := s.uniqueName(by)
	undo, err := s.publish(ctx, name, maskedElements, work.Affine(0, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	l, err := s.session.Get(ctx, name, true, 0)
	if err != nil {
		return err
	}
	// An event stands for the work as long as the lease lasts.
	defer func() { err = errors.Join(err, l.ReleaseAfter(g.Queue), g.Stream.Synchronize()) }()
	if err := l.WaitOn(ctx, g.Queue); err != nil {
		return err
	}
	if err := errors.Join(g.Kernels.Spin(g.Stream, duration), s.bench.Queue(g, l, maskedElements, masked(0))); err != nil {
		return err
	}
	began := time.Now()
	done := mempool.Completion{After: []mempool.Queue{g.Queue}}
	if by == work.ByEvent {
		e, err := mempool.NewEvent(g.Context)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		if err := e.Record(g.Queue); err != nil {
			return err
		}
		done = mempool.Completion{Event: e, EventOnly: true}
	}
	t := mempool.Tensor{DType: mempool.Uint32, Shape: []uint64{maskedElements}}
	if err := l.Publish(mempool.Publication{Name: name, Replace: true, Tensor: &t, Completion: done}); err != nil {
		return err
	}
	took := time.Since(began)
	if duration > 0 && took >= duration {
		return fmt.Errorf("publishing took %v, as if it had waited for the work of %v", took, duration)
	}
	a, err := w.check(ctx, work.Task{Task: "await", What: by, Name: name, Device: device, Pattern: masked(0), Consumer: consumer, Elements: maskedElements})
	if err != nil {
		return err
	}
	s.note = fmt.Sprintf("published in %v; waited %.0f ms for work of %v", took.Round(time.Microsecond), a.Waited*1e3, duration)
	return nil
}
