package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// slowChecks returns checks that transfer buffers while a kernel is held. A stream may wait for the kernel, but no call of the library
// may wait for it.
func slowChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	var streaming []string // the consumers that have streams; NumPy can use pinned memory but has no streams
	for _, c := range consumers {
		if c != "numpy" {
			streaming = append(streaming, c)
		}
	}
	checks := each(order, "slow-producer", preferred(streaming), slowly(slowProducer))
	return append(checks, each(order, "slow-consumer", preferred(streaming), slowly(slowConsumer))...)
}

// handing is one buffer that goes to a worker and back.
type handing struct {
	*scene
	worker *worker
	gpu    *work.GPU
	task   work.Task     // first task of the worker
	first  *work.Pattern // pattern that the buffer contains
	second *work.Pattern // pattern that the check writes
	takes  time.Duration // how long the slow kernel runs after the gate is open
}

// slowly returns a check that calls the method `rehearse` once, and then calls the function `run` twice. During the first call, `run` may
// still map new memory. During the second call, the kernel runs for some time after the gate is open. The check reports the times of the
// second call.
func slowly(run func(context.Context, *handing) error) func(context.Context, *scene, string) error {
	return func(ctx context.Context, s *scene, consumer string) (err error) {
		d, err := mempool.FindDevice(s.options.Device)
		if err != nil {
			return err
		}
		if ok, err := d.SupportsStreamMemOps(); err != nil || !ok {
			return skipf("streams of the GPU cannot wait for words: transfers wait on the CPU (%v)", err)
		}
		t := work.Task{Task: "slow-begin", Name: s.uniqueName("slow"), Consumer: consumer, Timeout: 60}
		if t.Device, err = s.uuid(); err != nil {
			return err
		}
		if t.Path, err = s.kernels(); err != nil {
			return err
		}
		h := &handing{scene: s, task: t}
		if h.gpu, err = s.bench.OnDevice(t.Device); err != nil {
			return err
		}
		undo, err := s.publish(ctx, t.Name, maskedElements, masked(0))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		if h.worker, err = s.worker(consumer); err != nil {
			return err
		}
		if err := errors.Join(h.rehearse(ctx), s.quiet(ctx)); err != nil {
			return err
		}
		for round, takes := range []time.Duration{0, slow} {
			h.first, h.second, h.takes = masked(uint32(round)), masked(uint32(round)+1), takes
			if err := run(ctx, h); err != nil {
				h.worker.kill() // because its kernel may be held
				return err
			}
		}
		return nil
	}
}

// rehearse transfers the buffer to the worker once, without a held kernel. The reason is that a process makes some driver calls only at its
// first transfer, for example the call that registers a timeline with the driver. These calls may wait for running kernels.
func (h *handing) rehearse(ctx context.Context) error {
	h.second = masked(0)
	if _, err := h.write(ctx, func() error { return nil }); err != nil {
		return err
	}
	t := h.task
	t.Pattern = h.second
	if _, err := h.worker.do(ctx, t); err != nil {
		return err
	}
	return h.end(ctx)
}

// slowProducer publishes a buffer before a kernel has written the content. The gate holds the kernel until the worker has the array and
// has queued a comparison of the array. Then the gate opens and the kernel runs for some time. The comparison must find the complete new
// content.
func slowProducer(ctx context.Context, h *handing) (err error) {
	gate, err := h.gpu.NewGate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	wrote, err := h.write(ctx, func() error { return gate.Hold(h.takes) })
	if err != nil {
		return err
	}
	read, err := h.begin(ctx, h.second)
	if err != nil {
		return err
	}
	if err := h.busy(); err != nil {
		return err
	}
	gate.Open()
	h.note = fmt.Sprintf("published in %s while a kernel wrote, taken and released in %s", wrote, read)
	return h.end(ctx)
}

// slowConsumer writes a buffer before a kernel of the worker has read the buffer. The worker's kernel is held until this process has
// published the new content. The worker must read the complete old content, and later readers must read the new content.
func slowConsumer(ctx context.Context, h *handing) error {
	h.task.Hold, h.task.Slow = true, h.takes.Seconds()
	read, err := h.begin(ctx, h.first)
	if err != nil {
		return err
	}
	wrote, err := h.write(ctx, func() error { return nil })
	if err != nil {
		return err
	}
	if err := h.busy(); err != nil {
		return err
	}
	h.note = fmt.Sprintf("taken and released in %s while a kernel read, written and published in %s", read, wrote)
	if err := h.end(ctx); err != nil {
		return err
	}
	return h.look(ctx, h.task.Name, maskedElements, h.second, nil)
}

// write calls the function `earlier`, which may queue work in this process's stream. Then the method `write` queues a kernel that writes
// the new content, and publishes the buffer. It returns how long the calls of Get, WaitOn and Publish took.
func (h *handing) write(ctx context.Context, earlier func() error) (took time.Duration, err error) {
	g := h.gpu
	start := time.Now()
	l, err := h.client.Get(ctx, h.task.Name, bridge.LeaseOptions{Write: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.ReleaseAfter(ctx, g.Queue)) }()
	if err := l.WaitOn(ctx, g.Queue); err != nil {
		return 0, err
	}
	took = time.Since(start)
	if err := errors.Join(earlier(), h.bench.Queue(ctx, g, l, maskedElements, h.second)); err != nil {
		return 0, err
	}
	start = time.Now()
	err = l.Publish(ctx, mempool.Publication{Name: h.task.Name, Replace: true, Completion: mempool.Completion{After: []mempool.Queue{g.Queue}}})
	return (took + time.Since(start)).Round(time.Microsecond), err
}

// begin lets the worker queue a comparison of the buffer in the worker's stream. It returns how long the worker's calls of the library
// took.
func (h *handing) begin(ctx context.Context, p *work.Pattern) (took time.Duration, err error) {
	t := h.task
	t.Pattern = p
	a, err := h.worker.do(ctx, t)
	if err == nil && !a.Busy {
		err = errors.New("the worker's stream was done before the kernel was let go: its transfer waited, or it did not wait at all")
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(a.Seconds * float64(time.Second)).Round(time.Microsecond), nil
}

// end opens the gate of the worker's stream, and returns an error if the worker read a wrong content.
func (h *handing) end(ctx context.Context) error {
	_, err := h.worker.check(ctx, work.Task{Task: "slow-end", Elements: maskedElements})
	return err
}

// busy returns an error if this process's stream has finished its work. While a kernel is held, the stream must be busy.
func (h *handing) busy() error {
	done, err := h.gpu.Stream.Query()
	if err == nil && done {
		err = errors.New("this process's stream was done before the kernel was let go: a transfer waited, or the stream did not")
	}
	return err
}
