package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
)

// The streams of workload (b).
const (
	streamBytes    = 64 << 10
	streamCapacity = 16
	// streamPause lies between frames whose latency is measured: everybody waits for the next.
	streamPause = time.Millisecond
	// mostPaced is how many of those there are.
	mostPaced = 2000
)

// streamConsumers are how many consumers a stream has.
var streamConsumers = []int{1, 2, 4, 8}

// now is what the clock says that all processes of the machine share.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the kernel has that clock
	}
	return time.Duration(t.Nano())
}

// consumer is somebody who takes frames until the channel is shut.
type consumer interface {
	// stamps are when each frame was in hand. It ends the consumer.
	stamps() ([]time.Duration, error)
}

// stream measures workload (b): frames through a channel, as fast as they go, and how long one takes when nothing else is
// on its way.
func stream(ctx context.Context, s *scene) error {
	for _, n := range streamConsumers {
		name := fmt.Sprintf("stream/go-go/%d consumers", n)
		if err := s.streamTo(ctx, name, n, s.startGoConsumer); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// streamTo streams to n consumers, each in a process of its own.
func (s *scene) streamTo(ctx context.Context, name string, n int, start func(context.Context, string, string) (consumer, error)) error {
	src, err := startInside(s.newSocket())
	if err != nil {
		return err
	}
	if err = src.makePool(ctx, s.poolSpec(streamBytes*(streamCapacity+16))); err != nil {
		return errors.Join(err, src.close())
	}
	var fast, paced Durations
	if fast, err = s.streamOnce(ctx, src, n, start, 0); err == nil {
		paced, err = s.streamOnce(ctx, src, n, start, streamPause)
	}
	if err = errors.Join(err, src.close()); err != nil {
		return err
	}
	fast.Each = paced.Each
	s.add(fast, name, streamBytes, embedded)
	return nil
}

// streamOnce sends frames with a pause between them, and returns how long each took to each consumer, and all together.
func (s *scene) streamOnce(ctx context.Context, src source, n int, start func(context.Context, string, string) (consumer, error),
	pause time.Duration) (d Durations, err error) {
	const name = "stream"
	ch, err := src.makeChannel(ctx, mempool.ChannelSpec{Name: name, Capacity: streamCapacity})
	if err != nil {
		return d, err
	}
	first, err := s.makeFrame(ctx, src, 0)
	if err == nil {
		err = ch.publish(ctx, first) // the channel keeps it for those who come
	}
	if err != nil {
		return d, err
	}
	var consumers []consumer
	for range n {
		c, err := start(ctx, src.socket(), name)
		if err != nil {
			return d, errors.Join(err, stopAll(consumers))
		}
		consumers = append(consumers, c)
	}
	sent, err := s.sendFrames(ctx, src, ch, pause)
	if err = errors.Join(err, ch.shut(ctx)); err != nil {
		return d, errors.Join(err, stopAll(consumers))
	}
	var end time.Duration
	for _, c := range consumers {
		stamps, err := c.stamps()
		if err != nil {
			return d, err
		}
		if len(stamps) != len(sent) {
			return d, fmt.Errorf("%d frames were sent, and %d came", len(sent), len(stamps))
		}
		for i, stamp := range stamps[warm(len(stamps)):] {
			d.Each = append(d.Each, stamp-sent[warm(len(stamps))+i])
		}
		end = max(end, stamps[len(stamps)-1])
	}
	d.Elapsed, d.Count = end-sent[0], len(sent)
	return d, nil
}

// warm is how many of n frames are not measured.
func warm(n int) int { return min(n/4, warmUpRounds) }

// sendFrames sends frames until the time is over, and returns when each was published.
func (s *scene) sendFrames(ctx context.Context, src source, ch outlet, pause time.Duration) (sent []time.Duration, err error) {
	for begun := time.Now(); len(sent) < leastSamples || time.Since(begun) < s.Time; {
		if pause > 0 {
			if len(sent) == mostPaced {
				break
			}
			time.Sleep(pause)
		}
		sent = append(sent, 0)
		b, err := s.makeFrame(ctx, src, uint64(len(sent)))
		if err != nil {
			return nil, err
		}
		sent[len(sent)-1] = now()
		if err := ch.publish(ctx, b); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// makeFrame makes a buffer with its number.
func (s *scene) makeFrame(ctx context.Context, src source, number uint64) (buffer, error) {
	b, err := src.allocate(ctx, mempool.Bytes(streamBytes))
	if err == nil {
		err = stampNumber(b, number)
	}
	return b, err
}

func stopAll(consumers []consumer) error {
	var errs []error
	for _, c := range consumers {
		_, err := c.stamps()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
