package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// These are the size of the frames in workload (c), and the capacity of their channel.
const (
	copyBytes    = 16 << 20
	copyCapacity = 4
)

// copyWorkload is the name of workload (c). bandwidth is the name of the measurement with which the bench compares
// workload (c): plain copies, from page-locked memory to a GPU or within memory of the CPU.
const (
	copyWorkload = "copy/go bytes to consumer"
	bandwidth    = "copies alone"
)

// copies measures workload (c): a Go program copies bytes of its own into frames, and a consumer takes the frames.
func copies(ctx context.Context, s *scene) error {
	alone, err := s.copiesAlone()
	if err != nil {
		return fmt.Errorf("%s: %w", bandwidth, err)
	}
	s.add(alone, copyWorkload, copyBytes, bandwidth)
	return s.withPool(ctx, s.poolSpec(copyBytes*(copyCapacity+4)), func(src *source) error {
		d, err := s.copyFrames(ctx, src)
		if err == nil {
			s.add(d, copyWorkload, copyBytes, ours)
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

// copiesAlone measures how fast the machine copies frames without poolbridge: from page-locked memory to the GPU, or on the CPU.
func (s *scene) copiesAlone() (d Durations, err error) {
	if s.kind == mempool.Host {
		from, to := make([]byte, copyBytes), make([]byte, copyBytes)
		return s.repeat(func() error {
			copy(to, from)
			return nil
		}, nil)
	}
	device, err := mempool.FindDevice(s.Device)
	if err != nil {
		return d, err
	}
	ctx, err := device.Retain()
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	stream, err := ctx.NewStream()
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	from, err := ctx.NewPinned(copyBytes)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := ctx.Malloc(copyBytes)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, ctx.MFree(to)) }()
	return s.copyToGPU(stream, to, from)
}

// aheadOfGPU is how many copies are queued before the producer waits.
const aheadOfGPU = 8

func (s *scene) copyToGPU(stream *cuda.Stream, to cuda.DevicePtr, from *cuda.Pinned) (Durations, error) {
	queued := 0
	d, err := s.repeat(func() error {
		if err := stream.CopyHtoDAsync(to, from, 0, copyBytes); err != nil {
			return err
		}
		if queued++; queued%aheadOfGPU != 0 {
			return nil
		}
		return stream.Synchronize()
	}, stream.Synchronize)
	d.Count, d.Each = len(d.Each), nil // most calls only queue a copy, so their times say nothing
	return d, err
}

// repeat calls one until the time is over, and then calls finish.
func (s *scene) repeat(one, finish func() error) (Durations, error) {
	watch := newStopwatch(s.Time)
	for watch.more() {
		start := time.Now()
		if err := one(); err != nil {
			return Durations{}, err
		}
		watch.took(time.Since(start))
	}
	if finish != nil {
		if err := finish(); err != nil {
			return Durations{}, err
		}
	}
	return watch.durations(), nil
}
