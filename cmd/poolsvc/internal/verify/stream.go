package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	frameElements = 4096 // uint64 elements: the Fibonacci numbers from the number of the frame on
	ringSlots     = 4    // capacity of a channel
	streamFrames  = 32   // frames that the ring check sends through a channel
	streamBytes   = 32 << 20
	fullAfter     = 0.1 // how many seconds a producer waits at a full channel before the publish fails
)

// streamChecks returns checks of channels. The ring check uses, as the consumer, each library that the function `streamers` returns. A
// second ring check uses each of these libraries except Go as the producer. The other checks run only with the libraries that the function
// `preferred` returns.
func streamChecks(_ mempool.Kind, consumers []string, _ Options) []check {
	able := streamers(consumers)
	best := preferred(able)
	ring := func(consumers []string) []check {
		return each(stream, "ring", consumers, flowing(mempool.Broadcast, mempool.Block, func(ctx context.Context, f *flow) error {
			return f.ring(ctx, f.producer, f.one)
		}))
	}
	produced := func(consumers []string) []check {
		return each(stream, producedName, consumers, flowing(mempool.Broadcast, mempool.Block, func(ctx context.Context, f *flow) error {
			return f.ring(ctx, f.one, f.other)
		}))
	}
	checks := append(ring(able), produced(able[1:])...)
	for _, c := range []struct {
		name string
		mode mempool.ChannelMode
		full mempool.FullPolicy
		run  func(context.Context, *flow) error
	}{
		{"broadcast", mempool.Broadcast, mempool.Block, broadcast},
		{"queue", mempool.WorkQueue, mempool.Block, queue},
		{"full-fail", mempool.Broadcast, mempool.Fail, fullFail},
		{"full-drop-oldest", mempool.Broadcast, mempool.DropOldest, dropping(ringSlots)},
		{"full-latest", mempool.Broadcast, mempool.Latest, dropping(1)},
		{"late-subscriber", mempool.Broadcast, mempool.Block, lateSubscriber},
	} {
		checks = append(checks, each(stream, c.name, best, flowing(c.mode, c.full, c.run))...)
	}
	for _, c := range []struct {
		name string
		mode mempool.ChannelMode
		run  func(ctx context.Context, f *flow, victim player) error
	}{
		{"consumer-killed", mempool.Broadcast, consumerKilled},
		{"producer-killed", mempool.Broadcast, producerKilled},
		{"stage-replaced", mempool.WorkQueue, stageReplaced},
	} {
		checks = append(checks, alone(each(stream, c.name, best, flowing(c.mode, mempool.Block, withVictim(c.run))), own)...)
	}
	return checks
}

// streamers returns Go and the libraries that users often use for streams. If none of these libraries is installed, streamers returns Go
// and the first library.
func streamers(consumers []string) []string {
	able := slices.DeleteFunc(slices.Clone(consumers[1:]), func(c string) bool { return !slices.Contains([]string{"numpy", "cupy", "torch"}, c) })
	if len(able) == 0 {
		able = consumers[1:min(2, len(consumers))]
	}
	return append([]string{goConsumer}, able...)
}

// flow is a channel in a pool of its own, with the workers that use the channel.
type flow struct {
	*scene
	pool *bridge.Pool
	name string // name of the channel

	one             player // the worker that uses the library of the check
	producer, other player // the workers in Go
}

// player is a worker that is a member of a flow, and the library that it uses.
type player struct {
	*worker
	consumer string
}

// flowing returns a check that makes a channel and calls the function `run`. If `run` succeeds, later checks use the same workers. If `run`
// fails, the check kills the workers, because they may still wait for frames.
func flowing(mode mempool.ChannelMode, full mempool.FullPolicy, run func(context.Context, *flow) error) func(context.Context, *scene, string) error {
	return func(ctx context.Context, s *scene, consumer string) (err error) {
		f := &flow{scene: s}
		for _, p := range []struct {
			player   *player
			part     string
			consumer string
		}{{&f.one, consumer, consumer}, {&f.producer, "producer", goConsumer}, {&f.other, "other", goConsumer}} {
			w, err := s.engage(p.part, p.consumer, p.consumer)
			if err != nil {
				return err
			}
			*p.player = player{w, p.consumer}
		}
		var undo func() error
		if f.pool, undo, err = s.pool(ctx, s.uniqueName("stream"), streamBytes); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		if f, err = f.another(ctx, mode, full); err != nil {
			return err
		}
		players := []player{f.one, f.producer, f.other}
		if err := run(ctx, f); err != nil {
			for _, p := range players {
				p.kill()
			}
			return err
		}
		for _, p := range players {
			if err := f.leave(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}
}

// another makes another channel in the pool of the flow, for the same players.
func (f *flow) another(ctx context.Context, mode mempool.ChannelMode, full mempool.FullPolicy) (*flow, error) {
	made := *f
	made.name = f.uniqueName(string(mode))
	return &made, made.create(ctx, mode, full)
}

// create makes the flow's channel.
func (f *flow) create(ctx context.Context, mode mempool.ChannelMode, full mempool.FullPolicy) error {
	_, err := f.client.CreateChannel(ctx, mempool.ChannelSpec{Name: f.name, Pool: f.pool.Info().ID, Mode: mode, Capacity: ringSlots, Full: full})
	return err
}

// task returns a task of the flow for a player.
func (f *flow) task(p player, t work.Task) work.Task {
	t.Name, t.Pool, t.Consumer, t.Elements = f.name, f.pool.Info().Name, p.consumer, frameElements
	return t
}

// publish lets a player publish frames with consecutive numbers. The channel must take every frame.
func (f *flow) publish(ctx context.Context, p player, first, last uint64) error {
	done, stopped, err := f.tryPublish(ctx, p, first, last, 60)
	if err == nil && stopped != nil {
		err = fmt.Errorf("after %d frames there was no room for more: %w", done, stopped)
	}
	return err
}

// tryPublish lets a player publish frames until the channel does not take a frame within wait seconds.
func (f *flow) tryPublish(ctx context.Context, p player, first, last uint64, wait float64) (done int, stopped *work.Failure, err error) {
	a, err := p.do(ctx, f.task(p, work.Task{Task: "stream-publish", Number: first, Count: int(last - first + 1), Timeout: wait}))
	if err != nil {
		return 0, nil, err
	}
	return a.Rounds, a.Stopped, nil
}

// fill publishes frames until the channel is full. It begins with frame 2, because the caller has published frame 1, and a consumer has
// taken and kept it. The channel must accept ringSlots frames in all, even if a publish takes long. The next publish must fail with the
// error code `code`.
func (f *flow) fill(ctx context.Context, p player, code string) error {
	if err := f.publish(ctx, p, 2, ringSlots); err != nil {
		return err
	}
	done, stopped, err := f.tryPublish(ctx, p, ringSlots+1, ringSlots+1, fullAfter)
	switch {
	case err != nil:
		return err
	case stopped == nil:
		return fmt.Errorf("%d frames found room in a channel of %d whose consumer is behind", ringSlots-1+done, ringSlots)
	case stopped.Code != code:
		return fmt.Errorf("a full channel should end with %q: %w", code, stopped)
	}
	return nil
}

// publishing returns a function that calls the method `publish`. The caller passes the returned function to `together`.
func (f *flow) publishing(p player, first, last uint64) func(context.Context) error {
	return func(ctx context.Context) error { return f.publish(ctx, p, first, last) }
}

// taking returns a function that calls the method `take`. The caller passes the returned function to `together`.
func (f *flow) taking(p player, first, last uint64) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := f.take(ctx, p, work.Task{}, first, last)
		return err
	}
}

// close closes the channel.
func (f *flow) close(ctx context.Context, p player) error {
	_, err := p.do(ctx, f.task(p, work.Task{Task: "stream-close"}))
	return err
}

// frames lets a player take or compare frames, and returns an error if the content of a frame is wrong.
func (f *flow) frames(ctx context.Context, p player, t work.Task) (*work.Answer, error) {
	a, err := p.do(ctx, f.task(p, t))
	switch {
	case err != nil:
		return nil, err
	case a.Mismatches > 0:
		return nil, fmt.Errorf("the worker found %d elements that differ: %v", a.Mismatches, a.First)
	case t.Task == "stream-take" && !a.Mapped:
		return nil, errors.New("the worker's array is not the shared memory: it was copied")
	}
	return a, nil
}

// take lets a player take frames. If the frames do not have the numbers from first to last, in this order, take returns an error.
func (f *flow) take(ctx context.Context, p player, t work.Task, first, last uint64) (*work.Answer, error) {
	t.Task, t.Count = "stream-take", int(last-first+1)
	a, err := f.frames(ctx, p, t)
	if err == nil {
		err = errors.Join(consecutive("numbers", a.Numbers, first, last), consecutive("sequence numbers", a.Sequence, first, last))
	}
	return a, err
}

// rest lets a player take all frames until the channel is closed, and returns their numbers.
func (f *flow) rest(ctx context.Context, p player) ([]uint64, error) {
	a, err := f.frames(ctx, p, work.Task{Task: "stream-take"})
	if err == nil && !a.Ended {
		err = errors.New("the frames did not end with the channel")
	}
	if err != nil {
		return nil, err
	}
	return a.Numbers, nil
}

// release lets a player compare its kept frames once more, and release them.
func (f *flow) release(ctx context.Context, p player) error {
	_, err := f.frames(ctx, p, work.Task{Task: "stream-release"})
	return err
}

// leave ends a player's subscriptions.
func (f *flow) leave(ctx context.Context, p player) error {
	_, err := p.do(ctx, work.Task{Task: "stream-leave"})
	return err
}

func consecutive(what string, got []uint64, first, last uint64) error {
	for i, n := range got {
		if n != first+uint64(i) {
			return fmt.Errorf("the %s of the frames should be %d to %d, and are %v", what, first, last, got)
		}
	}
	if uint64(len(got)) != last-first+1 {
		return fmt.Errorf("%d frames came, not %d", len(got), last-first+1)
	}
	return nil
}

// eachOnce returns an error unless got contains each number from first to last exactly once, in any order.
func eachOnce(got []uint64, first, last uint64) error {
	return consecutive("numbers, sorted,", slices.Sorted(slices.Values(got)), first, last)
}

// together runs the parts at the same time.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

// ring lets the consumer (`one`) take the first frame and keep it, and lets the producer publish frames until the channel is full. The
// producer must not overwrite the frame that the consumer keeps. Then the consumer releases this frame and takes the other frames, while
// the producer publishes more frames.
func (f *flow) ring(ctx context.Context, producer, one player) error {
	if err := f.publish(ctx, producer, 1, 1); err != nil {
		return err
	}
	if _, err := f.take(ctx, one, work.Task{Oldest: true, Keep: true}, 1, 1); err != nil {
		return err
	}
	if err := f.fill(ctx, producer, "timeout"); err != nil {
		return err
	}
	if err := f.release(ctx, one); err != nil {
		return err
	}
	began := time.Now()
	err := together(ctx, func(ctx context.Context) error {
		return errors.Join(f.publish(ctx, producer, ringSlots+1, streamFrames), f.close(ctx, producer))
	}, func(ctx context.Context) error {
		a, err := f.take(ctx, one, work.Task{}, 2, streamFrames)
		if err == nil && a.Missed > 0 {
			err = fmt.Errorf("%d frames are missing", a.Missed)
		}
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	left, err := f.rest(ctx, one)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("after the last frame came %v", left)
	}
	f.note = fmt.Sprintf("full when the producer was %d frames ahead; then %d frames, compared, in %v", ringSlots-1, streamFrames-1,
		took.Round(time.Millisecond))
	return err
}

// broadcast checks that two consumers see every frame.
func broadcast(ctx context.Context, f *flow) error {
	if err := f.publish(ctx, f.producer, 1, 1); err != nil {
		return err
	}
	for _, p := range []player{f.one, f.other} {
		if _, err := f.take(ctx, p, work.Task{Oldest: true}, 1, 1); err != nil {
			return err
		}
	}
	return together(ctx, f.publishing(f.producer, 2, streamFrames), f.taking(f.one, 2, streamFrames), f.taking(f.other, 2, streamFrames))
}

// queue checks that two consumers share the frames: each frame goes to exactly one consumer.
func queue(ctx context.Context, f *flow) error {
	if err := f.publish(ctx, f.producer, 1, 2); err != nil {
		return err
	}
	for i, p := range []player{f.one, f.other} { // each player takes and keeps one frame
		n := uint64(i) + 1
		if _, err := f.take(ctx, p, work.Task{Keep: true}, n, n); err != nil {
			return err
		}
	}
	var shares [2][]uint64
	share := func(i int, p player) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			if err = f.release(ctx, p); err == nil {
				shares[i], err = f.rest(ctx, p)
			}
			return err
		}
	}
	err := together(ctx, func(ctx context.Context) error {
		return errors.Join(f.publish(ctx, f.producer, 3, streamFrames), f.close(ctx, f.producer))
	}, share(0, f.one), share(1, f.other))
	f.note = fmt.Sprintf("%d frames to %s, %d to another process", len(shares[0])+1, f.one.consumer, len(shares[1])+1)
	if err != nil {
		return err
	}
	return eachOnce(slices.Concat(shares[0], shares[1]), 3, streamFrames)
}

// fullFail checks that publishing in a full channel fails, and succeeds again when the channel is not full any more.
func fullFail(ctx context.Context, f *flow) error {
	if err := f.publish(ctx, f.producer, 1, 1); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.one, work.Task{Oldest: true, Keep: true}, 1, 1); err != nil {
		return err
	}
	if err := f.fill(ctx, f.producer, "limit"); err != nil {
		return err
	}
	if err := f.release(ctx, f.one); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.one, work.Task{}, 2, ringSlots); err != nil {
		return err
	}
	if err := f.publish(ctx, f.producer, ringSlots+1, 2*ringSlots); err != nil {
		return err
	}
	_, err := f.take(ctx, f.one, work.Task{}, ringSlots+1, 2*ringSlots)
	return err
}

// dropping returns a check of a channel with a slow consumer. The consumer must miss the old frames and get the newest frames. The producer
// must not wait, and must not overwrite the frames that the consumer keeps.
func dropping(newest uint64) func(context.Context, *flow) error {
	return func(ctx context.Context, f *flow) error {
		const last = 5 * ringSlots
		if err := f.publish(ctx, f.producer, 1, 1); err != nil {
			return err
		}
		if _, err := f.take(ctx, f.one, work.Task{Oldest: true, Keep: true}, 1, 1); err != nil {
			return err
		}
		if err := f.publish(ctx, f.producer, 2, last); err != nil {
			return err
		}
		if err := f.release(ctx, f.one); err != nil {
			return err
		}
		a, err := f.take(ctx, f.one, work.Task{}, last-newest+1, last)
		if err == nil && a.Missed != last-newest-1 {
			err = fmt.Errorf("the channel says that %d frames were missed, and they were %d", a.Missed, last-newest-1)
		}
		return err
	}
}

// lateSubscriber lets a consumer subscribe after the producer has published frames. The consumer must begin with the newest frame or,
// with the option Oldest, with the oldest frame in the channel.
func lateSubscriber(ctx context.Context, f *flow) error {
	const last = 3 * ringSlots
	if err := f.publish(ctx, f.producer, 1, last); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.one, work.Task{}, last, last); err != nil {
		return fmt.Errorf("from the newest on: %w", err)
	}
	if err := f.leave(ctx, f.one); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.one, work.Task{Oldest: true}, last-ringSlots+1, last); err != nil {
		return fmt.Errorf("from the oldest on: %w", err)
	}
	return nil
}
