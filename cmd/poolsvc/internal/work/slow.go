package work

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

// mostHeld is when a kernel that nobody lets go on does so by itself.
const mostHeld = time.Minute

// Gate makes a word that a kernel may be held by, and runs the kernels that a slow check needs: the driver loads a kernel
// when it first runs, and may wait for those that are held.
func (g *GPU) Gate() (*cuda.Pinned, error) {
	gate, err := g.Context.NewPinned(8)
	if err != nil {
		return nil, err
	}
	clear(gate.Bytes())
	_, err = g.Kernels.Verify(g.Stream, gate.DevicePtr(), 2, pattern.Masked{})
	err = errors.Join(err, g.Kernels.Hold(g.Stream, gate.DevicePtr(), 0), g.Kernels.Spin(g.Stream, 0), g.Stream.Synchronize())
	if err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	return gate, nil
}

// reading is a comparison that a stream has begun in one task and that the next one waits for.
type reading struct {
	gate  *cuda.Pinned
	found *pattern.Verification
}

// open lets the kernel go on.
func (r *reading) open() { binary.NativeEndian.PutUint64(r.gate.Bytes(), 1) }

// slowBegin has a stream compare a buffer and releases it: it waits neither for whoever still writes the buffer nor for its
// own stream, which a kernel may hold first.
func (w *Worker) slowBegin(ctx context.Context, t *Task) (a *Answer, err error) {
	g, err := w.bench.OnDevice(t.Device)
	if err != nil {
		return nil, err
	}
	want, err := t.Pattern.pattern()
	if err != nil {
		return nil, err
	}
	gate, err := g.Gate()
	if err != nil {
		return nil, err
	}
	r := &reading{gate: gate}
	defer func() {
		if err != nil {
			r.open()
			err = errors.Join(err, g.Stream.Synchronize(), gate.Close())
		}
	}()
	l, err := w.lease(ctx, t, t.Name, false)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	err = l.WaitOn(ctx, g.Queue)
	ptr, err2 := l.Pointer()
	waited := time.Since(start)
	if err = errors.Join(err, err2); err == nil && t.Hold {
		err = errors.Join(g.Kernels.Hold(g.Stream, gate.DevicePtr(), mostHeld), g.Kernels.Spin(g.Stream, seconds(t.Slow)))
	}
	a = new(Answer)
	if err == nil {
		a.Elements, err = l.Tensor().Elements()
	}
	if err == nil {
		r.found, err = g.Kernels.StartVerify(g.Stream, cuda.DevicePtr(ptr), a.Elements, want)
	}
	start = time.Now()
	err = errors.Join(err, l.ReleaseAfter(g.Queue))
	a.Seconds = (waited + time.Since(start)).Seconds()
	if err != nil {
		return nil, err
	}
	done, err := g.Stream.Query()
	a.Busy, w.reading = !done, r
	return a, err
}

// slowEnd lets the stream go on, and says what it found.
func (w *Worker) slowEnd(context.Context, *Task) (*Answer, error) {
	r := w.reading
	if r == nil {
		return nil, errors.New("no stream was given anything to compare")
	}
	w.reading = nil
	r.open()
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
