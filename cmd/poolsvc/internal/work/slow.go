package work

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

// reading is a comparison of a buffer. The task "slow-begin" queues the comparison in a stream, and the task "slow-end"
// waits for the result.
type reading struct {
	gate  *Gate
	found *pattern.Verification
}

// slowBegin queues the comparison of a buffer in a stream and releases the buffer. slowBegin does not wait until other work has written the
// buffer. It also does not wait until the comparison has run, because a held kernel may come before the comparison in the stream.
func (w *Worker) slowBegin(ctx context.Context, t *Task) (a *Answer, err error) {
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	want, err := t.Pattern.pattern()
	if err != nil {
		return nil, err
	}
	gate, err := g.NewGate()
	if err != nil {
		return nil, err
	}
	r := &reading{gate: gate}
	defer func() {
		if err != nil {
			err = errors.Join(err, gate.Close())
		}
	}()
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	err = l.WaitOn(ctx, g.Queue)
	ptr, unreachable := l.Pointer(ctx)
	waited := time.Since(start)
	if err = errors.Join(err, unreachable); err == nil && t.Hold {
		err = gate.Hold(seconds(t.Slow))
	}
	a = new(Answer)
	if err == nil {
		a.Elements, err = l.Tensor().Elements()
	}
	if err == nil {
		r.found, err = g.Kernels.StartVerify(g.Stream, cuda.DevicePtr(ptr), a.Elements, want)
	}
	start = time.Now()
	err = errors.Join(err, l.ReleaseAfter(ctx, g.Queue))
	a.Seconds = (waited + time.Since(start)).Seconds()
	if err != nil {
		return nil, err
	}
	done, err := g.Stream.Query()
	a.Busy, w.reading = !done, r
	return a, err
}

// slowEnd opens the gate of the stream, waits for the comparison, and returns its result.
func (w *Worker) slowEnd(context.Context, *Task) (*Answer, error) {
	r := w.reading
	if r == nil {
		return nil, errors.New("slow-end without slow-begin")
	}
	w.reading = nil
	r.gate.Open()
	found, err := r.found.Wait()
	if err = errors.Join(err, r.gate.Close()); err != nil {
		return nil, err
	}
	a := &Answer{Elements: found.Elements, Mismatches: found.Count}
	if found.Count > 0 {
		a.First = []string{found.Err().Error()}
	}
	return a, nil
}
