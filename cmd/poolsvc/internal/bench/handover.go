package bench

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// underWay is how many buffers of a hand-over there is room for: the next is made while the last is being given back.
const underWay = 4

// handOverCredit is how many buffers a consumer may be sent before it has given one back: it never waits for that.
const handOverCredit = 8

// byName is the workload in which the consumer asks for each buffer by its name.
const byName = "hand-over/by name"

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
		if err := s.handOverSize(ctx, src, w, bytes, system); err != nil {
			return errors.Join(err, w.stop())
		}
	}
	return w.stop()
}

func (s *scene) handOverSize(ctx context.Context, src source, w *worker, bytes uint64, system string) error {
	err := src.makePool(ctx, s.poolSpec(bytes*underWay))
	if errors.Is(err, mempool.ErrOutOfMemory) {
		s.skip("hand-over", system, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	prefix := strconv.FormatUint(bytes, 10) + " "
	d, err := s.handOverTo(ctx, src, w, bytes, prefix)
	if err != nil {
		return err
	}
	s.add(d, "hand-over", bytes, system)
	if bytes == byNameBytes {
		if d, err = s.handOverByName(ctx, src, w, bytes, prefix); err != nil {
			return err
		}
		s.add(d, byName, bytes, system)
	}
	return src.destroyPool(ctx)
}

// byNameBytes is the size of the buffers that are asked for by name; the size makes no difference.
const byNameBytes = 1 << 20

// withService calls f with a service in a process of its own.
func (s *scene) withService(ctx context.Context, f func(*service) error) error {
	svc, err := startService(ctx, s.Poolsvc, s.newSocket())
	if err != nil {
		return err
	}
	return errors.Join(f(svc), svc.stop())
}

// handOverTo hands buffers over to a worker, through a channel.
func (s *scene) handOverTo(ctx context.Context, src source, w *worker, bytes uint64, channel string) (d Durations, err error) {
	ch, err := src.makeChannel(ctx, mempool.ChannelSpec{Name: channel, Mode: mempool.WorkQueue, Capacity: 2})
	if err != nil {
		return d, err
	}
	send := func(number int) error {
		b, err := src.allocate(ctx, mempool.Bytes(bytes))
		if err == nil {
			err = stampNumber(b, uint64(number))
		}
		if err == nil {
			err = ch.publish(ctx, b)
		}
		if err == nil {
			err = w.ack()
		}
		return err
	}
	if err := w.begin(framesTask{Task: "frames", Channel: channel, Consumer: s.consumer, Credit: handOverCredit, Each: true, Leases: true,
		OnDevice: s.kind != mempool.Host}); err != nil {
		return d, err
	}
	number := 0
	if err := send(number); err != nil { // it is there
		return d, w.failed(err)
	}
	watch := newStopwatch(s.Time)
	for watch.more() {
		start := time.Now()
		number++
		if err := send(number); err != nil {
			return d, w.failed(err)
		}
		watch.took(time.Since(start))
	}
	d = watch.durations()
	if err := ch.shut(ctx); err != nil {
		return d, err
	}
	return d, w.end(new(samples))
}

// handOverByName publishes buffers under names that begin with prefix, each of which a worker asks for.
func (s *scene) handOverByName(ctx context.Context, src source, w *worker, bytes uint64, prefix string) (Durations, error) {
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
