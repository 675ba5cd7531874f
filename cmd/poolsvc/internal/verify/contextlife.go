package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// segments are the sizes, in bytes, of the buffers that a worker opens in each context.
var segments = []uint64{146_064, 226_656, 154_909_264}

// contextRounds is how many times a worker opens the segments.
const contextRounds = 4

// contextLives returns checks of memory that outlives the contexts in which it is mapped.
func contextLives(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	life := func(destroy bool) func(context.Context, *scene, string) error {
		return func(ctx context.Context, s *scene, consumer string) error {
			return contextLife(ctx, s, consumer, destroy)
		}
	}
	checks := each(contexts, "new-contexts", consumers[:1], life(true))
	checks = alone(append(checks, each(contexts, "same-context", preferred(consumers), life(false))...), own)
	second := each(contexts, "second-context", consumers[:1], secondContext)
	if kind == mempool.Legacy {
		second = alone(second, own)
	}
	return append(checks, second...)
}

// contextLife lets a worker open and close three segments several times: in one context, or in a new context each time.
func contextLife(ctx context.Context, s *scene, consumer string, destroy bool) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	name := s.uniqueName("context-life")
	total := uint64(0)
	for _, bytes := range segments {
		total += bytes
	}
	pool, undo, err := s.pool(ctx, name, total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	var names []string
	for i, bytes := range segments {
		names = append(names, fmt.Sprintf("%s, segment %d", name, i))
		if err := s.put(ctx, pool, names[i], bytes/work.ElementBytes, masked(0)); err != nil {
			return err
		}
	}
	w, err := s.fresh(role{consumer: consumer})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	a, err := w.check(ctx, work.Task{Task: "context-life", Names: names, Device: device, Pattern: masked(0), Consumer: consumer,
		Rounds: contextRounds, Destroy: destroy})
	if err == nil && a.Rounds != contextRounds {
		err = fmt.Errorf("the worker went %d rounds, not %d", a.Rounds, contextRounds)
	}
	return err
}

// secondContext lets a worker with two CUDA contexts use memory in the second context. The second context can open a legacy handle only
// while the handle is not open in the primary context. If the handle is open in the primary context, the worker must report a clear error.
func secondContext(ctx context.Context, s *scene, consumer string) (err error) {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	name := s.uniqueName("second-context")
	undo, err := s.publish(ctx, name, maskedElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	t := work.Task{Task: "second-context", Name: name, Device: device, Pattern: masked(0), Elements: maskedElements}
	if s.kind == mempool.Legacy {
		return s.handleInSecond(ctx, consumer, t)
	}
	w, err := s.worker(consumer)
	if err == nil {
		_, err = w.check(ctx, t)
	}
	return err
}

// handleInSecond lets a new worker open the handle of a buffer. A new worker has no other memory open.
func (s *scene) handleInSecond(ctx context.Context, consumer string, t work.Task) (err error) {
	_, saved, release, err := s.save(ctx, t.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	w, err := s.fresh(role{consumer: consumer})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	t.Handle = saved.Handle
	a, err := w.check(ctx, t)
	switch {
	case err != nil:
		return err
	case a.Driver == nil:
		s.note = "this driver opens a legacy handle in two contexts at once"
	case a.Driver.Code != "unavailable":
		return fmt.Errorf("a legacy handle that is open in the primary context should be unavailable in a second one: %w", a.Driver)
	default:
		s.note = "refused while it is open in the primary context, as it should be"
	}
	return nil
}
