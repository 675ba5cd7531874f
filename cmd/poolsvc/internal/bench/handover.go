package bench

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// underWay is how many buffers of a hand-over there is room for: the next is made while the last is being given back.
const underWay = 3

// consumeTask has a worker make an array of each buffer of a prefix and acknowledge it; one without elements is the last.
type consumeTask struct {
	Task     string `json:"task"`
	Prefix   string `json:"prefix"`
	Consumer string `json:"consumer"`
}

// handOver measures workload (a): a new buffer goes from Go to an array in Python, which acknowledges it.
func handOver(ctx context.Context, s *scene) error {
	src, err := startInside(s.newSocket())
	if err != nil {
		return err
	}
	if err := errors.Join(s.handOverSizes(ctx, src, embedded), src.close()); err != nil {
		return err
	}
	return s.withService(ctx, func(svc *service) error {
		src, err := dialOutside(ctx, svc.socket)
		if err != nil {
			return err
		}
		return errors.Join(s.handOverSizes(ctx, src, apart), src.close())
	})
}

// handOverSizes hands buffers of every size over to one worker.
func (s *scene) handOverSizes(ctx context.Context, src source, system string) error {
	w, err := startWorker(ctx, s.Python, src.socket())
	if err != nil {
		return err
	}
	for _, bytes := range s.sizes() {
		err := src.makePool(ctx, s.poolSpec(bytes*underWay))
		if errors.Is(err, mempool.ErrOutOfMemory) {
			s.skip("hand-over", system, err.Error())
			continue
		}
		var d Durations
		if err == nil {
			d, err = s.handOverTo(ctx, src, w, bytes, strconv.FormatUint(bytes, 10)+" ")
		}
		if err == nil {
			err = src.destroyPool(ctx)
		}
		if err != nil {
			return errors.Join(err, w.stop())
		}
		s.add(d, "hand-over", bytes, system)
	}
	return w.stop()
}

// withService calls f with a service in a process of its own.
func (s *scene) withService(ctx context.Context, f func(*service) error) error {
	svc, err := startService(ctx, s.Poolsvc, s.newSocket())
	if err != nil {
		return err
	}
	return errors.Join(f(svc), svc.stop())
}

// handOverTo hands buffers whose names begin with prefix over to a worker.
func (s *scene) handOverTo(ctx context.Context, src source, w *worker, bytes uint64, prefix string) (Durations, error) {
	if err := w.begin(consumeTask{Task: "consume", Prefix: prefix, Consumer: s.consumer}); err != nil {
		return Durations{}, err
	}
	if err := w.ack(); err != nil { // it is there
		return Durations{}, err
	}
	watch := newStopwatch(s.Time)
	number := 0
	for ; watch.more(); number++ {
		name := prefix + strconv.Itoa(number)
		start := time.Now()
		err := handOverOne(ctx, src, name, mempool.Bytes(bytes), uint64(number))
		if err == nil {
			err = w.ack()
		}
		if err != nil {
			return Durations{}, w.failed(err)
		}
		watch.took(time.Since(start))
		if err := src.unpublish(ctx, name); err != nil {
			return Durations{}, err
		}
	}
	d := watch.durations()
	last := prefix + strconv.Itoa(number)
	if err := handOverOne(ctx, src, last, mempool.Bytes(0), 0); err != nil {
		return d, err
	}
	var answer struct{ Count int }
	if err := w.end(&answer); err != nil {
		return d, err
	}
	return d, src.unpublish(ctx, last)
}

// handOverOne makes a buffer, numbers it where the CPU can, and publishes it.
func handOverOne(ctx context.Context, src source, name string, t mempool.Tensor, number uint64) error {
	b, err := src.allocate(ctx, t)
	if err != nil {
		return err
	}
	if err = stampNumber(b, number); err == nil {
		err = b.Publish(ctx, mempool.Publication{Name: name})
	}
	return errors.Join(err, b.Release(false))
}
