package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
)

// event opens an interprocess event, waits for it on a stream and on the CPU without a look at the data, and only then
// compares the buffer.
func (w *Worker) event(ctx context.Context, t *Task) (a *Answer, err error) {
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(false)) }()
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	var handle cuda.IPCEventHandle
	if len(t.Handle) != len(handle) {
		return nil, fmt.Errorf("an event's handle has %d bytes, not %d", len(handle), len(t.Handle))
	}
	copy(handle[:], t.Handle)
	start := time.Now()
	e, err := g.Context.OpenEvent(handle)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := errors.Join(g.Stream.WaitEvent(e), g.Stream.Synchronize()); err != nil {
		return nil, err
	}
	a = &Answer{Waited: time.Since(start).Seconds()}
	if a.Elements, err = l.Tensor().Elements(); err != nil {
		return nil, err
	}
	return a, w.compare(a, l, a.Elements, t)
}
