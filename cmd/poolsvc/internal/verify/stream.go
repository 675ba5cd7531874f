package verify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	frameElements = 4096 // uint64 elements of a frame: the Fibonacci numbers from the number of the frame on
	ringSlots     = 4    // capacity of a channel
	streamFrames  = 32   // number of frames that a check sends through a channel
	streamBytes   = 32 << 20
	fullAfter     = 0.1 // how many seconds a producer waits at a full channel before the publish fails
)

// numberKey is the key of a frame's number in the metadata of the frame.
const numberKey = "number"

// publish publishes frames with the numbers from First to Last. If Arrays is true, each frame is in halves.
type publish struct {
	Channel string  `json:"channel"`
	Pool    string  `json:"pool"`
	First   uint64  `json:"first"`
	Last    uint64  `json:"last"`
	Timeout float64 `json:"timeout"` // seconds that each publish waits for room
	Arrays  bool    `json:"arrays"`
}

func (t publish) do(ctx context.Context, w *Worker) (any, error) {
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := c.TryOpenChannel(ctx, t.Channel)
	if err != nil {
		return nil, err
	}
	for n := t.First; n <= t.Last; n++ {
		content := fibonacci(n)
		content.Halves = t.Arrays
		l, err := w.allocate(ctx, t.Pool, content)
		if err != nil {
			return nil, err
		}
		limited, cancel := context.WithTimeout(ctx, time.Duration(t.Timeout*float64(time.Second)))
		_, err = ch.Publish(limited, l, mempool.FrameOptions{Meta: map[string]any{numberKey: n}})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", n, errors.Join(err, l.Release(true)))
		}
	}
	return nil, nil
}

// take takes and compares frames: Count frames, or all frames until the channel is closed if Count is 0. The first task for a channel makes
// the subscription, which begins with the oldest frame if Oldest is true. If Keep is true, the worker keeps the frames until the task
// releaseKept. The answer is a list of frames.
type take struct {
	Channel string `json:"channel"`
	Count   int    `json:"count"`
	Oldest  bool   `json:"oldest"`
	Keep    bool   `json:"keep"`
}

// frame says which frame a worker took: the number that the producer gave it, its place in the channel, and how many frames before it the
// channel dropped.
type frame struct {
	Number  uint64 `json:"number"`
	Seq     uint64 `json:"seq"`
	Dropped uint64 `json:"dropped"`
}

// intake is a subscription that several tasks use.
type intake struct {
	next func() (*bridge.Frame, error, bool)
	stop func()
	kept []*bridge.Frame
}

func (w *Worker) subscribed(ctx context.Context, channel string, oldest bool) (*intake, error) {
	if in := w.intakes[channel]; in != nil {
		return in, nil
	}
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	sub, err := c.TrySubscribe(ctx, channel, mempool.SubscribeOptions{Oldest: oldest, ManualAck: true})
	if err != nil {
		return nil, err
	}
	in := new(intake)
	in.next, in.stop = iter.Pull2(sub.Frames(ctx))
	if w.intakes == nil {
		w.intakes = make(map[string]*intake)
	}
	w.intakes[channel] = in
	return in, nil
}

func (t take) do(ctx context.Context, w *Worker) (any, error) {
	in, err := w.subscribed(ctx, t.Channel, t.Oldest)
	if err != nil {
		return nil, err
	}
	taken := []frame{}
	for t.Count == 0 || len(taken) < t.Count {
		f, err, more := in.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		number, err := w.compareFrame(ctx, f)
		if t.Keep {
			in.kept = append(in.kept, f)
		} else {
			err = errors.Join(err, f.Release())
		}
		if err != nil {
			return nil, err
		}
		taken = append(taken, frame{number, f.Seq, f.Dropped})
	}
	return taken, w.sync(ctx)
}

// compareFrame compares a frame with the content of its number, and returns the number.
func (w *Worker) compareFrame(ctx context.Context, f *bridge.Frame) (uint64, error) {
	said, ok := f.Meta[numberKey].(int64)
	if !ok {
		return 0, fmt.Errorf("frame %d has no number: %v", f.Seq, f.Meta)
	}
	number := uint64(said)
	m, err := memoryOf(ctx, f.Lease)
	content, t := fibonacci(number), f.Lease.Tensor()
	content.Halves = t.Arrays != nil
	if err == nil {
		err = content.describedBy(t)
	}
	if err == nil {
		err = w.gpus.compare(m, content, nil)
	}
	if err != nil {
		err = fmt.Errorf("frame %d: %w", f.Seq, err)
	}
	return number, err
}

// releaseKept compares the kept frames of a channel once more, and releases them.
type releaseKept struct {
	Channel string `json:"channel"`
}

func (t releaseKept) do(ctx context.Context, w *Worker) (any, error) {
	in := w.intakes[t.Channel]
	for _, f := range in.kept {
		_, err := w.compareFrame(ctx, f)
		if err = errors.Join(err, f.Release()); err != nil {
			return nil, err
		}
	}
	in.kept = nil
	return nil, w.sync(ctx)
}

// leave ends the worker's subscriptions.
type leave struct{}

func (leave) do(_ context.Context, w *Worker) (any, error) {
	for _, in := range w.intakes {
		in.stop()
	}
	w.intakes = nil
	return nil, nil
}

// flow is a channel in a pool of its own, with the workers that use the channel.
type flow struct {
	*scene
	pool    *bridge.Pool
	channel *bridge.Channel

	arrays bool // publish frames of several arrays

	one             *worker // the worker that uses the library of the check
	producer, other *worker // workers in Go
}

// flowing makes a channel and calls the function `run`. If `run` fails, it kills the workers, because they may still wait for frames.
func (s *scene) flowing(ctx context.Context, mode mempool.ChannelMode, run func(*flow) error) error {
	return s.pool(ctx, streamBytes, func(pool *bridge.Pool) (err error) {
		f := &flow{scene: s, pool: pool}
		for i, w := range []**worker{&f.one, &f.producer, &f.other} {
			consumer := goConsumer
			if i == 0 {
				consumer = s.consumer
			}
			if *w, err = s.hire(consumer); err != nil {
				return err
			}
		}
		if f, err = f.newChannel(ctx, mode); err == nil {
			err = run(f)
		}
		for _, w := range s.hired {
			switch {
			case err != nil:
				w.Kill()
			case !w.Gone():
				err = w.do(ctx, leave{}, nil)
			}
		}
		return err
	})
}

// newChannel makes another channel in the pool of the flow, for the same workers.
func (f *flow) newChannel(ctx context.Context, mode mempool.ChannelMode) (*flow, error) {
	made := *f
	var err error
	made.channel, err = f.client.CreateChannel(ctx, mempool.ChannelSpec{Name: f.uniqueName(string(mode)), Pool: f.pool.Info().ID, Mode: mode, Capacity: ringSlots})
	return &made, err
}

func (f *flow) name() string { return f.channel.Identity().Name }

// publish lets a worker publish frames with the numbers from first to last.
func (f *flow) publish(ctx context.Context, w *worker, first, last uint64) error {
	return w.do(ctx, publish{f.name(), f.pool.Info().Name, first, last, patience.Seconds(), f.arrays}, nil)
}

// fill publishes frames until the channel is full. It begins with frame 2, because the caller has published frame 1, and a consumer keeps
// it. The next publish must time out.
func (f *flow) fill(ctx context.Context, w *worker) error {
	if err := f.publish(ctx, w, 2, ringSlots); err != nil {
		return err
	}
	err := w.do(ctx, publish{f.name(), f.pool.Info().Name, ringSlots + 1, ringSlots + 1, fullAfter, f.arrays}, nil)
	switch {
	case err == nil:
		return fmt.Errorf("%d frames found room in a channel of %d whose consumer is behind", ringSlots+1, ringSlots)
	case !hasCode(err, "timeout"):
		return fmt.Errorf("a publish at a full channel should time out: %w", err)
	}
	return nil
}

// takeFrames lets a worker take frames, and returns an error unless they have the numbers from first to last, in this order.
func (f *flow) takeFrames(ctx context.Context, w *worker, first, last uint64, with take) error {
	with.Channel, with.Count = f.name(), int(last-first+1)
	var taken []frame
	if err := w.do(ctx, with, &taken); err != nil {
		return err
	}
	for _, one := range taken {
		if one.Number != one.Seq {
			return fmt.Errorf("frame %d of the channel has the number %d", one.Seq, one.Number)
		}
		if one.Dropped > 0 {
			return fmt.Errorf("%d frames are missing before frame %d", one.Dropped, one.Seq)
		}
	}
	return consecutive(numbers(taken), first, last)
}

// rest lets a worker take all frames until the channel is closed, and returns their numbers.
func (f *flow) rest(ctx context.Context, w *worker) ([]uint64, error) {
	var taken []frame
	err := w.do(ctx, take{Channel: f.name()}, &taken)
	return numbers(taken), err
}

func (f *flow) release(ctx context.Context, w *worker) error {
	return w.do(ctx, releaseKept{f.name()}, nil)
}

func numbers(taken []frame) (list []uint64) {
	for _, f := range taken {
		list = append(list, f.Number)
	}
	return list
}

// consecutive returns an error unless got has the numbers from first to last, in this order.
func consecutive(got []uint64, first, last uint64) error {
	for i, n := range got {
		if n != first+uint64(i) {
			return fmt.Errorf("the numbers of the frames should be %d to %d, and are %v", first, last, got)
		}
	}
	if uint64(len(got)) != last-first+1 {
		return fmt.Errorf("%d frames came, not %d", len(got), last-first+1)
	}
	return nil
}

// eachOnce returns an error unless got contains each number from first to last exactly once, in any order.
func eachOnce(got []uint64, first, last uint64) error {
	return consecutive(slices.Sorted(slices.Values(got)), first, last)
}

// inTurn calls the functions one after the other, until one fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// together calls the functions at the same time.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

// ring lets the consumer (`one`) keep the first frame, and lets the producer publish until the channel is full. The producer must not
// overwrite the frame that the consumer keeps. Then the consumer follows, while the producer publishes more frames.
func ring(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.Broadcast, func(f *flow) error { return f.ring(ctx, f.producer, f.one) })
}

// ringFromConsumer is the same with the library of the check as the producer.
func ringFromConsumer(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.Broadcast, func(f *flow) error { return f.ring(ctx, f.one, f.other) })
}

func (f *flow) ring(ctx context.Context, producer, one *worker) error {
	if err := f.publish(ctx, producer, 1, 1); err != nil {
		return err
	}
	if err := f.takeFrames(ctx, one, 1, 1, take{Oldest: true, Keep: true}); err != nil {
		return err
	}
	if err := f.fill(ctx, producer); err != nil {
		return err
	}
	if err := f.release(ctx, one); err != nil {
		return err
	}
	began := time.Now()
	err := together(ctx, func(ctx context.Context) error {
		return errors.Join(f.publish(ctx, producer, ringSlots+1, streamFrames), f.channel.Close(ctx))
	}, func(ctx context.Context) error { return f.takeFrames(ctx, one, 2, streamFrames, take{}) })
	if err != nil {
		return err
	}
	f.note = fmt.Sprintf("full when the producer was %d frames ahead; then %d frames, compared, in %v", ringSlots-1, streamFrames-1,
		time.Since(began).Round(time.Millisecond))
	left, err := f.rest(ctx, one)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("after the last frame came %v", left)
	}
	return err
}

// broadcast checks that two consumers see every frame.
func broadcast(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.Broadcast, func(f *flow) error {
		if err := f.publish(ctx, f.producer, 1, 1); err != nil {
			return err
		}
		for _, w := range []*worker{f.one, f.other} {
			if err := f.takeFrames(ctx, w, 1, 1, take{Oldest: true}); err != nil {
				return err
			}
		}
		return together(ctx,
			func(ctx context.Context) error { return f.publish(ctx, f.producer, 2, streamFrames) },
			func(ctx context.Context) error { return f.takeFrames(ctx, f.one, 2, streamFrames, take{}) },
			func(ctx context.Context) error { return f.takeFrames(ctx, f.other, 2, streamFrames, take{}) })
	})
}

// queue checks that two consumers share the frames: each frame goes to exactly one consumer.
func queue(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.WorkQueue, func(f *flow) error {
		if err := f.publish(ctx, f.producer, 1, 2); err != nil {
			return err
		}
		for i, w := range []*worker{f.one, f.other} { // each worker keeps one frame
			n := uint64(i) + 1
			if err := f.takeFrames(ctx, w, n, n, take{Keep: true}); err != nil {
				return err
			}
		}
		var shares [2][]uint64
		share := func(i int, w *worker) func(context.Context) error {
			return func(ctx context.Context) (err error) {
				if err = f.release(ctx, w); err == nil {
					shares[i], err = f.rest(ctx, w)
				}
				return err
			}
		}
		err := together(ctx, func(ctx context.Context) error {
			return errors.Join(f.publish(ctx, f.producer, 3, streamFrames), f.channel.Close(ctx))
		}, share(0, f.one), share(1, f.other))
		if err != nil {
			return err
		}
		f.note = fmt.Sprintf("%d frames to %s, %d to another process", len(shares[0])+1, f.consumer, len(shares[1])+1)
		return eachOnce(slices.Concat(shares[0], shares[1]), 3, streamFrames)
	})
}

// severalArrays checks frames of two arrays, from Go to the consumer (`one`), and from the consumer to Go.
func severalArrays(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.WorkQueue, func(f *flow) error {
		f.arrays = true
		if err := together(ctx,
			func(ctx context.Context) error { return f.publish(ctx, f.producer, 1, streamFrames) },
			func(ctx context.Context) error { return f.takeFrames(ctx, f.one, 1, streamFrames, take{}) }); err != nil {
			return err
		}
		back, err := f.newChannel(ctx, mempool.WorkQueue)
		if err != nil {
			return err
		}
		return together(ctx,
			func(ctx context.Context) error { return back.publish(ctx, f.one, 1, streamFrames) },
			func(ctx context.Context) error { return back.takeFrames(ctx, f.other, 1, streamFrames, take{}) })
	})
}

// consumerKilled kills a consumer that keeps a frame of a broadcast, which is full therefore, and frames of a queue. After the kill, the
// broadcast must go on, and another consumer must get the frames of the queue.
func consumerKilled(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.Broadcast, func(f *flow) error {
		q, err := f.newChannel(ctx, mempool.WorkQueue)
		if err != nil {
			return err
		}
		victim := f.one
		if err := inTurn(
			func() error { return f.publish(ctx, f.producer, 1, 1) },
			func() error { return q.publish(ctx, f.producer, 1, ringSlots) },
			func() error { return q.takeFrames(ctx, victim, 1, 2, take{Keep: true}) },
			func() error { return q.takeFrames(ctx, f.other, 3, ringSlots, take{Keep: true}) },
			func() error { return f.takeFrames(ctx, victim, 1, 1, take{Oldest: true, Keep: true}) },
			func() error { return f.takeFrames(ctx, f.other, 1, 1, take{Oldest: true}) },
			func() error { return f.fill(ctx, f.producer) },
		); err != nil {
			return err
		}
		victim.Kill()
		err = together(ctx,
			func(ctx context.Context) error { return f.publish(ctx, f.producer, ringSlots+1, streamFrames) },
			func(ctx context.Context) error { return f.takeFrames(ctx, f.other, 2, streamFrames, take{}) })
		if err = errors.Join(err, q.channel.Close(ctx)); err != nil {
			return err
		}
		if err := q.release(ctx, f.other); err != nil {
			return err
		}
		got, err := q.rest(ctx, f.other)
		if err != nil {
			return err
		}
		return eachOnce(got, 1, 2)
	})
}

// producerKilled kills a producer. The consumers must get the frames that the producer had completed, and another producer must be able to
// publish.
//
// When a process is killed, the GPU drops the work that the process has queued. If this work would have written the content of a frame, the
// frame is lost. So the check kills the producer only after one consumer has read all frames: at this time, their content is complete.
func producerKilled(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.Broadcast, func(f *flow) error {
		victim, err := f.worker()
		if err != nil {
			return err
		}
		if err := inTurn(
			func() error { return f.publish(ctx, victim, 1, 1) },
			func() error { return f.takeFrames(ctx, f.one, 1, 1, take{Oldest: true}) },
			func() error { return f.takeFrames(ctx, f.other, 1, 1, take{Oldest: true}) },
			func() error { return f.publish(ctx, victim, 2, ringSlots) },
			func() error { return f.takeFrames(ctx, f.other, 2, ringSlots, take{}) },
			func() error { return f.other.do(ctx, leave{}, nil) },
		); err != nil {
			return err
		}
		victim.Kill()
		if err := f.takeFrames(ctx, f.one, 2, ringSlots, take{}); err != nil {
			return err
		}
		return together(ctx,
			func(ctx context.Context) error { return f.publish(ctx, f.producer, ringSlots+1, streamFrames) },
			func(ctx context.Context) error { return f.takeFrames(ctx, f.one, ringSlots+1, streamFrames, take{}) })
	})
}

// stageReplaced kills the worker that copies frames from a queue to a broadcast, while this worker keeps a frame. Then another worker copies
// the frames. The consumer of the broadcast must get every frame.
func stageReplaced(ctx context.Context, s *scene) error {
	return s.flowing(ctx, mempool.WorkQueue, func(in *flow) error {
		out, err := in.newChannel(ctx, mempool.Broadcast)
		if err != nil {
			return err
		}
		victim, err := in.worker()
		if err != nil {
			return err
		}
		if err := inTurn(
			func() error { return in.publish(ctx, in.producer, 1, ringSlots) },
			func() error { return relay(ctx, in, out, victim, 2) },
			func() error { return out.takeFrames(ctx, in.other, 1, 2, take{Oldest: true}) },
			func() error { return in.takeFrames(ctx, victim, 3, 3, take{Keep: true}) },
		); err != nil {
			return err
		}
		victim.Kill()
		var got []uint64
		err = together(ctx, func(ctx context.Context) error {
			return errors.Join(in.publish(ctx, in.producer, ringSlots+1, streamFrames), in.channel.Close(ctx))
		}, func(ctx context.Context) error {
			return errors.Join(relay(ctx, in, out, in.one, streamFrames-2), out.channel.Close(ctx))
		}, func(ctx context.Context) (err error) {
			got, err = out.rest(ctx, in.other)
			return err
		})
		if err != nil {
			return err
		}
		return eachOnce(got, 3, streamFrames)
	})
}

// relay lets a worker be a stage of a pipeline: it compares so many frames of one channel, and publishes frames with the same content in
// another channel.
func relay(ctx context.Context, in, out *flow, w *worker, frames int) error {
	for range frames {
		var taken []frame
		if err := w.do(ctx, take{Channel: in.name(), Count: 1, Keep: true}, &taken); err != nil {
			return err
		}
		for _, n := range numbers(taken) {
			if err := errors.Join(out.publish(ctx, w, n, n), in.release(ctx, w)); err != nil {
				return err
			}
		}
	}
	return nil
}
