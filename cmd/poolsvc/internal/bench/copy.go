package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// These are the size of the frames in workload (c), and the capacity of their channel.
const (
	copyBytes    = 16 << 20
	copyCapacity = 4
)

// copies measures workload (c): a Go program copies bytes of its own into frames, and a consumer takes the frames.
func copies(ctx context.Context, s *scene) error {
	return s.withPool(ctx, s.poolSpec(copyBytes*(copyCapacity+4)), func(src *source) error {
		d, err := s.copyFrames(ctx, src)
		if err == nil {
			s.add(d, "copy/go bytes to consumer", copyBytes)
		}
		return err
	})
}

// copyFrames sends frames to a consumer in another process. It copies the bytes of each frame from a Go slice into a buffer of the pool.
func (s *scene) copyFrames(ctx context.Context, src *source) (d Durations, err error) {
	const name = "copies"
	ch, err := src.makeChannel(ctx, mempool.ChannelSpec{Name: name, Capacity: copyCapacity})
	if err != nil {
		return d, err
	}
	p, err := ch.Publisher(ctx, mempool.Bytes(copyBytes))
	if err != nil {
		return d, err
	}
	bytes := make([]byte, copyBytes)
	frame := func(number int) (*bridge.Lease, error) {
		binary.LittleEndian.PutUint64(bytes, uint64(number))
		b, err := p.Loan(ctx)
		if err != nil {
			return nil, err
		}
		if err := b.CopyFrom(ctx, 0, bytes); err != nil {
			return nil, errors.Join(err, b.Release(true))
		}
		return b, nil
	}
	send := func(number int) error {
		b, err := frame(number)
		if err == nil {
			err = publish(ctx, p, b)
		}
		return err
	}
	if err := send(0); err != nil {
		return d, err
	}
	c, err := s.startGoConsumer(ctx, src)
	if err == nil {
		err = c.begin(ctx, name)
	}
	if err == nil {
		err = c.ready()
	}
	if err != nil {
		return d, err
	}
	number := 0
	watch := newStopwatch(s.Time)
	for watch.more() {
		start := time.Now()
		number++
		if err := send(number); err != nil {
			return d, errors.Join(err, ch.Close(ctx), c.stop())
		}
		watch.took(time.Since(start))
	}
	if err := finishCopies(ctx, func() (*bridge.Lease, error) { return frame(number + 1) }); err != nil {
		return d, errors.Join(err, ch.Close(ctx), c.stop())
	}
	d = watch.durations()
	d.Count = len(d.Each) + 1
	if err := ch.Close(ctx); err != nil {
		return d, err
	}
	stamps, err := c.stamps()
	if err == nil && len(stamps) != number {
		err = fmt.Errorf("%d frames were sent, and %d came", number, len(stamps))
	}
	return d, err
}

// finishCopies waits until the queued copies are done, because the measurement includes their time. To do so, finishCopies queues one more
// copy, which is done after all other copies, and waits for it.
func finishCopies(ctx context.Context, more func() (*bridge.Lease, error)) error {
	last, err := more()
	if err != nil {
		return err
	}
	return errors.Join(last.WaitOn(ctx, mempool.CPU), last.Release(false))
}
