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

// slowChecks returns checks in which kernels are held while buffers are transferred. Only streams may wait for the kernels.
func slowChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	var streaming []string // NumPy uses pinned memory but has no streams
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
	first  *work.Pattern // pattern in the buffer
	second *work.Pattern // pattern to be written
	takes  time.Duration // duration of the slow work
}

// slowly rehearses a check and runs it twice. The first run may still map new memory. The second run measures the calls; its kernel works
// for a while after it is let go.
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

// rehearse lets the buffer go to the worker and back once. Things that happen only once in a process, like registering a timeline with
// the driver, may wait for running kernels.
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

// slowProducer publishes a buffer whose content a kernel has not written yet. The kernel is held until the worker has its array and has
// queued its reading work. Then the kernel takes some time, and the worker must see the complete content.
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

// slowConsumer writes a buffer that a kernel of the worker has not read yet. That kernel is held until the new content is published. The
// worker must see the complete old content, and other readers the new one.
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

// write queues a new content of the buffer in this process's stream, after earlier, and publishes the buffer. It returns how long that
// took, without queuing the kernels.
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

// begin lets the worker's stream compare the buffer, without waiting for it. It returns how long the calls took in the worker.
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

// end lets the worker's stream go on, and checks what it read.
func (h *handing) end(ctx context.Context) error {
	_, err := h.worker.check(ctx, work.Task{Task: "slow-end", Elements: maskedElements})
	return err
}

// busy returns an error if this process's stream has no work, which it must have while a kernel is held.
func (h *handing) busy() error {
	done, err := h.gpu.Stream.Query()
	if err == nil && done {
		err = errors.New("this process's stream was done before the kernel was let go: a transfer waited, or the stream did not")
	}
	return err
}
