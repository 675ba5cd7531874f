package bench

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/mempool"
)

// transferCredit is how many unacknowledged frames a consumer may have. It does not limit the transfers, because the pool can hold only one
// buffer.
const transferCredit = 8

// The bench measures these two transfers with one buffer size only, because the size does not change their time. In the first transfer, the
// consumer takes a lease and makes a new array for each buffer. In the second transfer, the consumer asks for each buffer by its name.
const (
	leasing = "transfer/a lease each"
	byName  = "transfer/by name"
)

// consumeTask tells a worker to make an array of each buffer whose name begins with a prefix. The worker acknowledges each buffer. A buffer
// without elements is the last buffer.
type consumeTask struct {
	Prefix   string `json:"prefix"`
	Consumer string `json:"consumer"`
}

// transfer measures workload (a): a Go program sends a new buffer, a Python worker makes an array of the buffer, and the memory of the
// buffer goes back to the pool. The pool can hold only one buffer, so an allocation succeeds only after the memory of the previous buffer
// is back in the pool.
func transfer(ctx context.Context, s *scene) error {
	return s.withService(ctx, func(svc *service) error {
		src, err := dial(ctx, svc.Socket)
		if err != nil {
			return err
		}
		return errors.Join(s.transferSizes(ctx, src), src.client.Close())
	})
}

// transferSizes transfers buffers of every size to one worker.
func (s *scene) transferSizes(ctx context.Context, src *source) error {
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return err
	}
	for _, bytes := range s.sizes() {
		if err := s.transferSize(ctx, src, w, bytes); err != nil {
			return errors.Join(err, w.abandon())
		}
	}
	return w.stop()
}

func (s *scene) transferSize(ctx context.Context, src *source, w *worker, bytes uint64) error {
	err := s.makeRoomForOne(ctx, src, s.poolSpec(bytes), bytes)
	if errors.Is(err, mempool.ErrOutOfMemory) {
		s.skip("transfer", err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	prefix := strconv.FormatUint(bytes, 10) + " "
	d, err := s.transferTo(ctx, src, w, bytes, prefix, false)
	if err != nil {
		return err
	}
	s.add(d, "transfer", bytes)
	if bytes != oneSize {
		return src.pool.Destroy(ctx)
	}
	if d, err = s.transferTo(ctx, src, w, bytes, prefix+"leases", true); err != nil {
		return err
	}
	s.add(d, leasing, bytes)
	if d, err = s.transferByName(ctx, src, w, bytes, prefix); err != nil {
		return err
	}
	s.add(d, byName, bytes)
	return src.pool.Destroy(ctx)
}

// oneSize is the buffer size of the transfers that are measured with one size.
const oneSize = 1 << 20

// makeRoomForOne makes a pool that can hold exactly one buffer.
func (s *scene) makeRoomForOne(ctx context.Context, src *source, spec mempool.PoolSpec, bytes uint64) error {
	if err := src.makePool(ctx, spec); err != nil {
		return err
	}
	b, err := src.pool.Allocate(ctx, mempool.Bytes(bytes))
	if err != nil {
		return errors.Join(err, src.pool.Destroy(ctx))
	}
	spec.MaxBytes = b.Grant().BlockBytes
	if err := errors.Join(b.Release(false), src.pool.Destroy(ctx)); err != nil {
		return err
	}
	return src.makePool(ctx, spec)
}

// withService runs a service in a separate process while f runs.
func (s *scene) withService(ctx context.Context, f func(*service) error) error {
	svc, err := child.Serve(ctx, s.Poolsvc, s.newSocket())
	if err != nil {
		return err
	}
	return errors.Join(f(&service{svc}), svc.Stop())
}

// withPool runs a service in a separate process, which has a pool, while f runs.
func (s *scene) withPool(ctx context.Context, spec mempool.PoolSpec, f func(*source) error) error {
	return s.withService(ctx, func(svc *service) error {
		src, err := dial(ctx, svc.Socket)
		if err != nil {
			return err
		}
		if err = src.makePool(ctx, spec); err == nil {
			err = f(src)
		}
		return errors.Join(err, src.client.Close())
	})
}

// transferTo transfers buffers to a worker through a channel. The pool of the buffers can hold only one buffer.
func (s *scene) transferTo(ctx context.Context, src *source, w *worker, bytes uint64, channel string, leases bool) (d Durations, err error) {
	ch, err := src.makeChannel(ctx, mempool.ChannelSpec{Name: channel, Mode: mempool.WorkQueue, Capacity: 2})
	if err != nil {
		return d, err
	}
	// failed closes the channel first, because the worker waits for frames until the channel is closed.
	failed := func(err error) error { return w.failed(errors.Join(err, ch.Close(ctx))) }
	if err := w.begin("frames", framesTask{Channel: channel, Consumer: s.consumer, Credit: transferCredit, Each: true, Leases: leases,
		OnDevice: s.kind != mempool.Host}); err != nil {
		return d, failed(err)
	}
	p, err := ch.Publisher(ctx, mempool.Bytes(bytes))
	if err != nil {
		return d, failed(err)
	}
	b, err := p.Loan(ctx)
	if err != nil {
		return d, failed(err)
	}
	// send publishes the buffer, and waits until its memory is back in the pool.
	send := func(number int) error {
		err := stampNumber(ctx, b, uint64(number))
		if err == nil {
			err = publish(ctx, p, b)
		}
		if err == nil {
			b, err = p.Loan(ctx)
		}
		return err
	}
	number := 0
	if err := send(number); err != nil {
		return d, failed(err)
	}
	if err := w.ack(); err != nil { // the worker has the first frame
		return d, failed(err)
	}
	watch := newStopwatch(s.Time)
	for watch.more() {
		start := time.Now()
		number++
		if err := send(number); err != nil {
			return d, failed(err)
		}
		watch.took(time.Since(start))
	}
	d = watch.durations()
	if err := errors.Join(b.Release(true), ch.Close(ctx)); err != nil {
		return d, err
	}
	return d, w.end(new(samples))
}

// transferByName publishes buffers under names that begin with prefix. The worker asks for each name.
func (s *scene) transferByName(ctx context.Context, src *source, w *worker, bytes uint64, prefix string) (Durations, error) {
	if err := w.begin("consume", consumeTask{Prefix: prefix, Consumer: s.consumer}); err != nil {
		return Durations{}, err
	}
	if err := w.ack(); err != nil { // the worker is ready
		return Durations{}, err
	}
	watch := newStopwatch(s.Time)
	number := 0
	for ; watch.more(); number++ {
		name := prefix + strconv.Itoa(number)
		start := time.Now()
		if err := transferOne(ctx, src, name, mempool.Bytes(bytes), uint64(number)); err != nil {
			return Durations{}, err // the worker has no answer because it waits for the name
		}
		if err := w.ack(); err != nil {
			return Durations{}, w.failed(err)
		}
		watch.took(time.Since(start))
		if err := src.client.Unpublish(ctx, name); err != nil {
			return Durations{}, err
		}
	}
	d := watch.durations()
	last := prefix + strconv.Itoa(number)
	if err := transferOne(ctx, src, last, mempool.Bytes(0), 0); err != nil {
		return d, err
	}
	var answer struct{ Count int }
	if err := w.end(&answer); err != nil {
		return d, err
	}
	return d, src.client.Unpublish(ctx, last)
}

// transferOne makes a buffer, writes number into the buffer if the CPU can access the buffer, and publishes the buffer.
func transferOne(ctx context.Context, src *source, name string, t mempool.Tensor, number uint64) error {
	b, err := src.pool.Allocate(ctx, t)
	if err != nil {
		return err
	}
	if err = stampNumber(ctx, b, number); err == nil {
		err = b.Publish(ctx, mempool.Publication{Name: name})
	}
	return errors.Join(err, b.Release(false))
}
