package work

import (
	"context"
	"errors"
	"time"
)

// These are the ways in which the task "await" can wait.
const (
	ByEvent = "event"
	ByFence = "fence"
)

// await makes a stream wait for the content of a buffer, and waits for the stream without reading the data. Then await compares the data.
func (w *Worker) await(ctx context.Context, t *Task) (a *Answer, err error) {
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	if came := l.Info(); (len(came.Event) > 0) != (t.What == ByEvent) {
		return nil, errors.New("the lease did not come with the expected thing to wait for: " + t.What)
	}
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	wait := l.WaitOn
	if t.What == ByEvent {
		event, err := l.ReadyEvent()
		if err != nil {
			return nil, err
		}
		wait = event.Before
	}
	if err := errors.Join(wait(ctx, g.Queue), g.Stream.Synchronize()); err != nil {
		return nil, err
	}
	a = &Answer{Waited: time.Since(start).Seconds()}
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	return a, w.compare(ctx, a, l, a.Elements, t)
}
