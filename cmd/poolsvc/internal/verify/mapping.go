package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// twice writes a buffer through one mapping, and reads it through another mapping in the same process.
type twice struct {
	Name    string   `json:"name"`
	Content *Pattern `json:"content"`
}

func (t twice) do(ctx context.Context, w *Worker) (any, error) {
	return nil, w.using(ctx, t.Name, true, func(l *bridge.Lease, m memory) error {
		if err := w.gpus.fill(m, t.Content); err != nil {
			return err
		}
		// After Publish, the lease uses a second mapping of the buffer. This mapping is read-only.
		if err := l.Publish(ctx, mempool.Publication{Name: t.Name, Replace: true, Keep: true}); err != nil {
			return err
		}
		second, err := memoryOf(ctx, l)
		if err == nil && second.ptr == m.ptr {
			err = fmt.Errorf("two mappings should lie at two addresses, and both are at %#x", m.ptr)
		}
		if err != nil {
			return err
		}
		return w.gpus.compare(second, t.Content, nil)
	})
}

// readOnly takes a read lease on a buffer, and makes sure that neither the library nor the driver lets the buffer be written.
type readOnly struct {
	Name   string   `json:"name"`
	Expect *Pattern `json:"expect"`
}

func (t readOnly) do(ctx context.Context, w *Worker) (any, error) {
	return nil, w.using(ctx, t.Name, false, func(l *bridge.Lease, m memory) error {
		if err := l.CopyFrom(ctx, 0, make([]byte, 4)); bridge.Code(err) != "invalid" {
			return fmt.Errorf("writing a read lease should be an invalid argument, and was: %w", err)
		}
		g, err := w.gpus.of(m)
		if err != nil {
			return err
		}
		if g.context.CopyHtoD(m.ptr, make([]byte, 4)) == nil {
			return errors.New("the driver let memory that is mapped read-only be written")
		}
		return w.gpus.compare(m, t.Expect, nil)
	})
}

// exchange lets a worker compare all elements.
func exchange(ctx context.Context, s *scene) error {
	p := masked(megabyte, 0)
	return s.published(ctx, p, func(name string) error { return s.tell(ctx, check{name, p, nil}) })
}

// tell lets a worker do a task that has no answer.
func (s *scene) tell(ctx context.Context, t task) error {
	w, err := s.worker()
	if err != nil {
		return err
	}
	return w.do(ctx, t, nil)
}

// mappedTwice lets a worker map memory at two addresses, write through one of them and read through the other.
func mappedTwice(ctx context.Context, s *scene) error {
	p := masked(megabyte, 0)
	return s.published(ctx, masked(megabyte, 1), func(name string) error {
		if err := s.tell(ctx, twice{name, p}); err != nil {
			return err
		}
		return s.compareBuffer(ctx, name, p, nil)
	})
}

// forbidden lets a worker try to write memory of a read lease.
func forbidden(ctx context.Context, s *scene) error {
	p := masked(megabyte, 0)
	return s.published(ctx, p, func(name string) error {
		if err := s.tell(ctx, readOnly{name, p}); err != nil {
			return err
		}
		return s.compareBuffer(ctx, name, p, nil)
	})
}

// subRanges publishes parts of a buffer by their offset, and lets a worker compare them.
func subRanges(ctx context.Context, s *scene) error {
	return s.published(ctx, masked(megabyte, 0), func(name string) error {
		w, err := s.worker()
		if err != nil {
			return err
		}
		for _, part := range []struct{ first, n uint64 }{{0, 1}, {1, 65535}, {100003, 150000}, {megabyte - 1, 1}} {
			l, err := s.client.Get(ctx, name, bridge.LeaseOptions{Write: true}) // Get waits until the worker's lease has ended
			if err != nil {
				return err
			}
			p := masked(part.n, part.first)
			t := p.tensor()
			t.ByteOffset = part.first * t.DType.ItemSize()
			err = l.Publish(ctx, mempool.Publication{Name: name, Tensor: &t, Replace: true})
			if err = errors.Join(err, l.Release(false)); err != nil {
				return err
			}
			if err := w.do(ctx, check{name, p, nil}, nil); err != nil {
				return fmt.Errorf("%d elements from %d on: %w", part.n, part.first, err)
			}
		}
		return nil
	})
}
