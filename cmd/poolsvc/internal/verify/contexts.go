package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// segments are the sizes, in bytes, of the buffers that a worker opens in each context.
var segments = []uint64{146_064, 226_656, 154_909_264}

// contextRounds is how many times a worker opens the segments.
const contextRounds = 4

// rounds leases several buffers, compares them and ends the session, several times: in one context, or in a new context each time.
type rounds struct {
	Names   []string   `json:"names"`
	Expect  []*Pattern `json:"expect"`
	Device  string     `json:"device"`
	Rounds  int        `json:"rounds"`
	Destroy bool       `json:"destroy"`
}

func (t rounds) do(ctx context.Context, w *Worker) (_ any, err error) {
	if err := w.close(); err != nil { // which gives up everything that keeps a context alive
		return nil, err
	}
	if !t.Destroy {
		d, err := mempool.FindDevice(t.Device)
		if err != nil {
			return nil, err
		}
		keep, err := d.Retain()
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, keep.Close()) }()
	}
	for round := range t.Rounds {
		for i, name := range t.Names { // the leases end with the session
			l, err := w.lease(ctx, name, false)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round, name, err)
			}
			m, err := memoryOf(ctx, l)
			if err == nil {
				err = w.gpus.compare(m, t.Expect[i], nil)
			}
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round, name, err)
			}
		}
		if err := w.close(); err != nil {
			return nil, fmt.Errorf("end of round %d: %w", round, err)
		}
	}
	return nil, nil
}

// secondContext compares a buffer in the primary context of the GPU and in a second context. If the task has a legacy handle, it opens that
// instead; then the answer says with which error the driver refused to open a handle in both contexts.
type secondContext struct {
	Name   string   `json:"name"`
	Handle []byte   `json:"handle"`
	Device string   `json:"device"`
	Expect *Pattern `json:"expect"`
}

func (t secondContext) do(ctx context.Context, w *Worker) (_ any, err error) {
	d, err := mempool.FindDevice(t.Device)
	if err != nil {
		return nil, err
	}
	primary, err := d.Retain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, primary.Close()) }()
	second, err := d.NewContext()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	if t.Handle != nil {
		return t.open(primary, second)
	}
	return nil, w.using(ctx, t.Name, false, func(_ *bridge.Lease, m memory) error {
		return errors.Join(compareIn(primary, m.ptr, t.Expect), compareIn(second, m.ptr, t.Expect))
	})
}

// open opens the handle in the primary context and then in the second one, which the driver refuses. The result is the refusal.
func (t secondContext) open(primary, second *cuda.Context) (refusal *Failure, err error) {
	h, err := mempool.ParseLegacyHandle(t.Handle)
	if err != nil {
		return nil, err
	}
	first, err := h.Open(primary, t.Expect.bytes())
	if err != nil {
		return nil, err
	}
	again, refused := h.Open(second, t.Expect.bytes())
	if refused == nil {
		err = errors.Join(compareIn(second, again.Ptr(), t.Expect), again.Close())
	}
	return failure(refused), errors.Join(err, compareIn(primary, first.Ptr(), t.Expect), first.Close())
}

// compareIn lets a kernel in the context c compare memory with a pattern.
func compareIn(c *cuda.Context, ptr cuda.DevicePtr, p *Pattern) error {
	kernels, err := pattern.Load(c)
	if err != nil {
		return err
	}
	found, err := kernels.Verify(nil, ptr, p.Elements, p.content())
	if err == nil {
		err = found.Err()
	}
	return errors.Join(err, kernels.Close())
}

// contextLife lets a new worker open and close three segments several times.
func contextLife(destroy bool) func(context.Context, *scene) error {
	return func(ctx context.Context, s *scene) error {
		t := rounds{Rounds: contextRounds, Destroy: destroy}
		var err error
		if t.Device, err = s.uuid(); err != nil {
			return err
		}
		total := uint64(0)
		for _, bytes := range segments {
			total += bytes
		}
		return s.pool(ctx, total, func(pool *bridge.Pool) error {
			for i, bytes := range segments {
				name, p := s.uniqueName("segment"), masked(bytes/4, uint64(i))
				if err := s.put(ctx, pool, name, p); err != nil {
					return err
				}
				t.Names, t.Expect = append(t.Names, name), append(t.Expect, p)
			}
			return s.alone(nil, func(w *worker) error { return w.do(ctx, t, nil) })
		})
	}
}

// twoContexts lets a worker with two CUDA contexts use memory in both. The second context cannot open a legacy handle that the primary
// context has open: the worker must report a clear error.
func twoContexts(ctx context.Context, s *scene) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	p := masked(megabyte, 0)
	return s.published(ctx, p, func(name string) error {
		if s.kind != mempool.Legacy {
			return s.tell(ctx, secondContext{name, nil, device, p})
		}
		return s.save(ctx, name, func(_ string, handle []byte) error {
			return s.alone(nil, func(w *worker) error { // a new worker has no other memory open
				var refusal *Failure
				err := w.do(ctx, secondContext{name, handle, device, p}, &refusal)
				switch {
				case err != nil:
					return err
				case refusal == nil:
					s.note = "this driver opens a legacy handle in two contexts at once"
				case refusal.Code != "unavailable":
					return fmt.Errorf("a legacy handle that is open in the primary context should be unavailable in a second one: %w", refusal)
				default:
					s.note = "refused while it is open in the primary context, as it should be"
				}
				return nil
			})
		})
	})
}
