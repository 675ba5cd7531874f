package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// slow is how long the producer's kernel takes.
const slow = 100 * time.Millisecond

// eventChecks returns checks in which a consumer waits for the producer's work: in one check by an interprocess event, in the other by a
// fence.
func eventChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	checks := each(order, "event", preferred(consumers), awaited(work.ByEvent, cuda.Device.SupportsIPCEvents, "interprocess events"))
	return append(checks, each(order, "fence", preferred(consumers), awaited(work.ByFence, cuda.Device.SupportsStreamMemOps,
		"streams that wait for words"))...)
}

// awaited returns a check of one way to wait for GPU work: `by` says which way. If the function `has` returns false for the GPU, the check
// is skipped. `what` is the name of the feature that the GPU lacks in this case.
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
		a := &awaiting{scene: s, worker: w, consumer: consumer, by: by, name: s.uniqueName(by)}
		if a.device, err = s.uuid(); err != nil {
			return err
		}
		if a.gpu, err = s.bench.OnDevice(a.device); err != nil {
			return err
		}
		undo, err := s.publish(ctx, a.name, maskedElements, work.Affine(0, 0))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		if err := s.quiet(ctx); err != nil {
			return err
		}
		// The first round holds no kernel. In this round, the processes make the calls that each process makes only once: they load kernels,
		// register the timeline with the driver, and open the memory in the worker. These calls could wait for a held kernel.
		for _, takes := range []time.Duration{0, slow} {
			if err := a.round(ctx, takes); err != nil {
				return err
			}
		}
		return nil
	}
}

// awaiting is a buffer, and the worker that waits for its content.
type awaiting struct {
	*scene
	worker   *worker
	gpu      *work.GPU
	consumer string
	device   string
	by       string
	name     string
}

// round publishes a buffer before a kernel has written the content. If `takes` is not 0, a gate holds the kernel until the publish call has
// returned, so the publish call must not wait for the kernel. After the gate opens, the stream does other work for the time `takes`, and
// then the kernel writes. The worker first waits for the kernel, and only then reads and compares the data.
func (a *awaiting) round(ctx context.Context, takes time.Duration) (err error) {
	g := a.gpu
	gate, err := g.NewGate()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gate.Close()) }()
	l, err := a.client.Get(ctx, a.name, bridge.LeaseOptions{Write: true}) // Get waits until the worker's lease has ended
	if err != nil {
		return err
	}
	// The worker can use the interprocess event only while this lease lasts, so this deferred call ends the lease after all other work of
	// round.
	defer func() { err = errors.Join(err, l.ReleaseAfter(ctx, g.Queue), g.Stream.Synchronize()) }()
	t := mempool.Tensor{DType: mempool.Uint32, Shape: []uint64{maskedElements}}
	done := mempool.Completion{After: []mempool.Queue{g.Queue}}
	var event *mempool.Event
	if a.by == work.ByEvent {
		if event, err = mempool.NewEvent(g.Context); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, event.Close()) }()
		done.Event = event
	}
	idle, err := g.Context.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, idle.Close()) }()
	if err := l.WaitOn(ctx, g.Queue); err != nil {
		return err
	}
	defer gate.Open()
	if takes > 0 {
		err = gate.Hold(takes)
	}
	if err = errors.Join(err, a.bench.Queue(ctx, g, l, maskedElements, masked(0))); err != nil {
		return err
	}
	took, err := meanwhile(gate.Open, idle.Query, func() error {
		if event != nil {
			if err := event.Record(g.Queue); err != nil {
				return err
			}
		}
		return l.Publish(ctx, mempool.Publication{Name: a.name, Replace: true, Tensor: &t, Completion: done})
	})
	if err != nil {
		return err
	}
	gate.Open()
	answer, err := a.worker.check(ctx, work.Task{Task: "await", What: a.by, Name: a.name, Device: a.device, Pattern: masked(0),
		Consumer: a.consumer, Elements: maskedElements})
	if err != nil {
		return err
	}
	a.note = fmt.Sprintf("published in %v while a kernel was held; waited %.0f ms for work of %v", took.Round(time.Microsecond),
		answer.Waited*1e3, takes)
	return nil
}

const (
	callLimit  = 5 * time.Second // a publish that takes longer counts as a publish that waits for the kernel
	asideLimit = time.Second     // a query of an idle stream that takes longer counts as blocked
)

// meanwhile returns how long a call of the function `publish` takes while a kernel is held. The function `open` lets the kernel run. If
// `publish` waits for the kernel, the function `meanwhile` also calls the function `query`, which queries an idle stream. If `query` waits
// too, the error says that the driver blocks the calls of this process.
func meanwhile(open func(), query func() (bool, error), publish func() error) (took time.Duration, err error) {
	published := make(chan error, 1)
	began := time.Now()
	go func() { published <- publish() }()
	select {
	case err := <-published:
		return time.Since(began), err
	case <-time.After(callLimit):
	}
	queried := make(chan error, 1)
	go func() {
		_, err := query()
		queried <- err
	}()
	select {
	case err = <-queried:
		err = errors.Join(fmt.Errorf("publishing waited for a kernel: it took more than %v, until the kernel was let go", callLimit), err)
		open()
	case <-time.After(asideLimit):
		open()
		err = errors.Join(fmt.Errorf("the driver held up this process: while a kernel was held, publishing took more than %v and a query of "+
			"an idle stream more than %v; a call of another thread, such as cuMemFree, waits for the kernel", callLimit, asideLimit), <-queried)
	}
	return 0, errors.Join(err, <-published)
}
