package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	// slow is how long a slow kernel takes.
	slow = 100 * time.Millisecond
	// callLimit is the time after which a call counts as one that waits for the held kernel.
	callLimit = 5 * time.Second
)

// queueRead queues a comparison of a buffer in a stream, and releases the buffer. It waits neither for the writer of the buffer nor for the
// comparison. If Hold is true, a kernel holds the stream before the comparison until the task endRead, and then another kernel runs for Slow
// seconds.
type queueRead struct {
	Name    string   `json:"name"`
	Expect  *Pattern `json:"expect"`
	Device  string   `json:"device"`
	Kernels string   `json:"kernels"` // path of the kernels, for Python
	Event   bool     `json:"event"`   // whether to wait for the interprocess event that came with the content, before all else
	Hold    bool     `json:"hold"`
	Slow    float64  `json:"slow"`
}

// queued is the answer: whether the stream still had work to do, and how long the calls of the library took, in seconds.
type queued struct {
	Busy    bool    `json:"busy"`
	Seconds float64 `json:"seconds"`
}

// reading is a comparison that is queued in a stream.
type reading struct {
	gate  *gate
	found *pattern.Verification
}

func (t queueRead) do(ctx context.Context, w *Worker) (_ any, err error) {
	g, err := w.gpus.named(t.Device)
	if err != nil {
		return nil, err
	}
	r := new(reading)
	if r.gate, err = g.newGate(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.gate.close())
		}
	}()
	l, err := w.lease(ctx, t.Name, false)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if t.Event {
		err = g.awaitEvent(ctx, l)
	}
	err = errors.Join(err, l.WaitOn(ctx, g.queue))
	m, unreachable := addressOf(ctx, l)
	took := time.Since(start)
	if err = errors.Join(err, unreachable); err == nil && t.Hold {
		err = r.gate.hold(time.Duration(t.Slow * float64(time.Second)))
	}
	if err == nil {
		r.found, err = g.kernels.StartVerify(g.stream, m.ptr, t.Expect.Elements, t.Expect.content())
	}
	start = time.Now()
	if err = errors.Join(err, l.ReleaseAfter(ctx, g.queue)); err != nil {
		return nil, err
	}
	took += time.Since(start)
	done, err := g.stream.Query()
	w.reading = r
	return queued{!done, took.Seconds()}, err
}

// awaitEvent waits until the interprocess event that came with the lease is done, without the lease's fence.
func (g *gpu) awaitEvent(ctx context.Context, l *bridge.Lease) error {
	event, err := l.ReadyEvent()
	if err == nil && event == nil {
		err = errors.New("no event came with the lease")
	}
	if err != nil {
		return err
	}
	return errors.Join(event.Before(ctx, g.queue), g.stream.Synchronize())
}

// endRead opens the gate of the stream, and returns an error if the comparison found a wrong content. The answer is how long it waited for
// the comparison, in seconds.
type endRead struct{}

func (endRead) do(_ context.Context, w *Worker) (any, error) {
	r := w.reading
	w.reading = nil
	if r == nil {
		return nil, errors.New("no comparison is queued")
	}
	start := time.Now()
	r.gate.open()
	found, err := r.found.Wait()
	return time.Since(start).Seconds(), errors.Join(err, found.Err(), r.gate.close())
}

// transit is a buffer that goes from this process to a worker while a kernel is held.
type transit struct {
	*scene
	worker *worker
	gpu    *gpu
	read   queueRead // what the worker does with the buffer
}

// inTransit returns a check that transfers a buffer while a kernel is held, as the function `run` does. Streams may wait for the kernel,
// but no call of the library may. The kernel takes time only in the last round. Before it, the processes make the driver calls that each
// process makes only once, because these calls could wait for a held kernel: they load kernels, register timelines and map the memory.
// `has` says whether the GPU has what the check needs; otherwise the check is skipped because the GPU lacks `what`.
func inTransit(event bool, run func(ctx context.Context, t *transit, next *Pattern, takes time.Duration) error) func(context.Context, *scene) error {
	has, what := cuda.Device.SupportsStreamMemOps, "streams that wait for words"
	if event {
		has, what = cuda.Device.SupportsIPCEvents, "interprocess events"
	}
	return func(ctx context.Context, s *scene) error {
		d, err := mempool.FindDevice(s.options.Device)
		if err != nil {
			return err
		}
		if ok, err := has(d); err != nil || !ok {
			return skipf("the GPU has no %s (%v)", what, err)
		}
		t := &transit{scene: s, read: queueRead{Event: event, Expect: masked(megabyte, 1)}}
		if t.read.Device, err = s.uuid(); err != nil {
			return err
		}
		if t.read.Kernels, err = s.kernels(); err != nil {
			return err
		}
		if t.gpu, err = s.gpus.named(t.read.Device); err != nil {
			return err
		}
		if t.worker, err = s.worker(); err != nil {
			return err
		}
		return s.published(ctx, masked(megabyte, 0), func(name string) error {
			t.read.Name = name
			err := t.rehearse(ctx)
			for round, takes := range []time.Duration{0, slow} {
				if err == nil {
					err = run(ctx, t, masked(megabyte, uint64(round)+2), takes)
				}
			}
			if err != nil {
				t.worker.Kill() // because its kernel may be held
			}
			return err
		})
	}
}

// rehearse transfers the buffer without a held kernel.
func (t *transit) rehearse(ctx context.Context) error {
	_, err := t.write(ctx, t.read.Expect, func() error { return nil }, func() error {
		return errors.Join(t.worker.do(ctx, t.read, nil), t.worker.do(ctx, endRead{}, nil))
	})
	return errors.Join(err, t.quiet(ctx))
}

// write queues a kernel that writes a pattern, after the work that the function `earlier` queues, and publishes the buffer. Then it calls f,
// while the lease and the event last. It returns how long the calls of Get, WaitOn and Publish took.
func (t *transit) write(ctx context.Context, p *Pattern, earlier, f func() error) (took time.Duration, err error) {
	done := mempool.Completion{After: []mempool.Queue{t.gpu.queue}}
	if t.read.Event {
		event, err := mempool.NewEvent(t.gpu.context)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, event.Close()) }()
		done.Event = event
	}
	start := time.Now()
	l, err := t.client.Get(ctx, t.read.Name, bridge.LeaseOptions{Write: true}) // Get waits until the worker's lease has ended
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.ReleaseAfter(ctx, t.gpu.queue)) }()
	if err := l.WaitOn(ctx, t.gpu.queue); err != nil {
		return 0, err
	}
	took = time.Since(start)
	m, err := addressOf(ctx, l)
	if err = errors.Join(err, earlier()); err == nil {
		err = t.gpu.fill(m, p)
	}
	if err == nil && done.Event != nil {
		err = done.Event.Record(t.gpu.queue)
	}
	if err != nil {
		return 0, err
	}
	start = time.Now()
	if err := l.Publish(ctx, mempool.Publication{Name: t.read.Name, Replace: true, Completion: done}); err != nil {
		return 0, err
	}
	published := time.Since(start)
	if published > callLimit {
		return 0, fmt.Errorf("publishing waited for a kernel: it took %v", published)
	}
	return (took + published).Round(time.Microsecond), f()
}

// slowProducer publishes a buffer before a kernel has written the content. A gate holds the kernel until the worker has the array and has
// queued a comparison, which must find the complete new content. With an event, the gate opens before the worker waits for the event.
func slowProducer(ctx context.Context, t *transit, next *Pattern, takes time.Duration) (err error) {
	gate, err := t.gpu.newGate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.close()) }()
	t.read.Expect = next
	var took time.Duration
	var waited float64
	wrote, err := t.write(ctx, next, func() error { return gate.hold(takes) }, func() (err error) {
		if t.read.Event {
			gate.open()
		}
		if took, err = t.begin(ctx, !t.read.Event); err != nil {
			return err
		}
		gate.open()
		return t.worker.do(ctx, endRead{}, &waited)
	})
	if t.read.Event {
		t.note = fmt.Sprintf("published in %s while a kernel was held; waited %s for work of %v", wrote, took, takes)
	} else {
		t.note = fmt.Sprintf("published in %s while a kernel was held, taken and released in %s; waited %.0f ms for work of %v", wrote, took,
			waited*1e3, takes)
	}
	return err
}

// slowConsumer writes a buffer before a kernel of the worker has read it: a gate holds the kernel until this process has published the new
// content. The worker must read the complete old content, and later readers must read the new content.
func slowConsumer(ctx context.Context, t *transit, next *Pattern, takes time.Duration) error {
	t.read.Hold, t.read.Slow = true, takes.Seconds()
	took, err := t.begin(ctx, false)
	if err != nil {
		return err
	}
	wrote, err := t.write(ctx, next, func() error { return nil }, t.busy)
	if err != nil {
		return err
	}
	t.note = fmt.Sprintf("taken and released in %s while a kernel read, written and published in %s", took, wrote)
	t.read.Expect = next
	if err := t.worker.do(ctx, endRead{}, nil); err != nil {
		return err
	}
	return t.compareBuffer(ctx, t.read.Name, next, nil)
}

// begin lets the worker queue a comparison, and returns how long the worker's calls of the library took. The worker's stream must still be
// busy afterwards if it waits for a held kernel. `held` says whether that is a kernel of this process.
func (t *transit) begin(ctx context.Context, held bool) (time.Duration, error) {
	var a queued
	err := t.worker.do(ctx, t.read, &a)
	if err == nil && (held || t.read.Hold) && !a.Busy {
		err = errors.New("the worker's stream was done before the kernel was let go: its transfer waited, or it did not wait at all")
	}
	if err == nil && held {
		err = t.busy()
	}
	return time.Duration(a.Seconds * float64(time.Second)).Round(time.Microsecond), err
}

// busy returns an error if this process's stream has finished its work. While a kernel is held, the stream must be busy.
func (t *transit) busy() error {
	done, err := t.gpu.stream.Query()
	if err == nil && done {
		err = errors.New("this process's stream was done before the kernel was let go: a transfer waited, or the stream did not")
	}
	return err
}
