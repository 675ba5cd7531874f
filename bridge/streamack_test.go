package bridge

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// loops are the ways in which the consumers of this file handle each frame.
var loops = []struct {
	name   string
	manual bool
	do     func(f *Frame) (kept bool, err error)
}{
	{"release", false, func(f *Frame) (bool, error) { return false, f.Release() }},
	{"keep", false, func(*Frame) (bool, error) { return true, nil }},
	{"acknowledge and keep", false, func(f *Frame) (bool, error) { return true, f.Ack() }},
	{"release, with ManualAck", true, func(f *Frame) (bool, error) { return false, f.Release() }},
	{"acknowledge and keep, with ManualAck", true, func(f *Frame) (bool, error) { return true, f.Ack() }},
}

func TestEveryLoopOverFramesEnds(t *testing.T) {
	const frames = 30 // more frames than the channel keeps
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for _, loop := range loops {
			for _, consumers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", mode, loop.name, consumers), func(t *testing.T) {
					_, path := serve(t, server.Config{})
					producer := dial(t, path)
					p := createPool(t, producer, hostPool("p", 1<<20))
					ch := makeChannel(t, producer, p, mempool.ChannelSpec{Mode: mode, Capacity: 4})
					var all sync.WaitGroup
					seen := make([][]uint64, consumers)
					for i := range consumers {
						mine, err := dial(t, path).TryOpenChannel(t.Context(), "c")
						require.NoError(t, err)
						sub, err := mine.subscribe(t.Context(), mempool.SubscribeOptions{})
						require.NoError(t, err)
						all.Go(func() { seen[i] = consumeAll(t, sub, loop.manual, loop.do) })
					}
					for n := range uint64(frames) {
						require.NoError(t, sendFrame(t.Context(), p, ch, n, 8, mempool.FrameOptions{}))
					}
					require.NoError(t, ch.Close(t.Context()))
					all.Wait()
					if mode == mempool.Broadcast {
						for _, numbers := range seen {
							assert.Len(t, numbers, frames)
						}
						return
					}
					shared := slices.Concat(seen...)
					slices.Sort(shared)
					assert.Len(t, shared, frames)
					assert.Len(t, slices.Compact(shared), frames, "each once")
				})
			}
		}
	}
}

// consumeAll consumes frames until the channel has ended, and then releases the frames that it has kept.
func consumeAll(t *testing.T, sub *subscription, manual bool, do func(*Frame) (bool, error)) (numbers []uint64) {
	var kept []*Frame
	for f, err := range func(yield func(*Frame, error) bool) { sub.deliver(t.Context(), manual, yield) } {
		if !assert.NoError(t, err) {
			break
		}
		n, err := verify(f)
		assert.NoError(t, err)
		numbers = append(numbers, n)
		keep, err := do(f)
		assert.NoError(t, err)
		if keep {
			kept = append(kept, f)
		}
	}
	for i, f := range kept {
		n, err := verify(f)
		assert.NoError(t, err)
		assert.Equal(t, numbers[i], n, "its memory was not used again")
		assert.NoError(t, f.Release())
	}
	return numbers
}

func TestAKilledWorkersAcknowledgedFramesDoNotComeBack(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	for n := range uint64(4) {
		require.NoError(t, sendFrame(t.Context(), p, ch, n, 100, mempool.FrameOptions{}))
	}
	victim := spawn(t, "consume", r.path, with("HOLD=1", "KEEP=1"))
	require.Equal(t, "ready", victim.says())
	for n := range 2 {
		require.Equal(t, fmt.Sprintf("got %d %d 0", n, n+1), victim.says())
		victim.tell("") // the victim keeps the frame, and asks for the next frame
	}
	require.Equal(t, "got 2 3 0", victim.says())
	victim.kill()
	r.log.Await(t, "what a session held is reclaimed") // when the process is gone, its frames go back to the queue
	assert.Equal(t, []uint64{2, 3}, take(t, ch, mempool.SubscribeOptions{}, 2))
	require.NoError(t, ch.Close(t.Context()))
}

func TestAFrameIsSettledOnceByItsConsumer(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	ch := makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	for n := range uint64(3) {
		require.NoError(t, sendFrame(t.Context(), p, ch, n, 8, mempool.FrameOptions{}))
	}
	var frames []*Frame
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{}) {
		require.NoError(t, err)
		if frames = append(frames, f); len(frames) == 3 {
			break
		}
	}
	passed, last := frames[1], frames[2]
	assert.ErrorIs(t, passed.Requeue(), ErrSettled, "asking for the next acknowledged it")
	require.NoError(t, last.Requeue(), "the subscription has ended, the frame is not settled")
	for _, f := range frames {
		assert.ErrorIs(t, f.Ack(), ErrSettled)
		assert.ErrorIs(t, f.Requeue(), ErrSettled)
		require.NoError(t, f.Release())
		assert.ErrorIs(t, f.Ack(), ErrSettled)
	}
	assert.Equal(t, []uint64{2}, take(t, ch, mempool.SubscribeOptions{}, 1), "only the last came back")

	gone := dial(t, path)
	theirs, err := gone.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	require.NoError(t, sendFrame(t.Context(), p, ch, 3, 8, mempool.FrameOptions{}))
	for f, err := range theirs.Frames(t.Context(), mempool.SubscribeOptions{ManualAck: true}) {
		require.NoError(t, err)
		require.NoError(t, gone.Close())
		assert.ErrorIs(t, f.Ack(), ErrClosed)
		break
	}
	assert.Equal(t, []uint64{3}, take(t, ch, mempool.SubscribeOptions{}, 1))

	broadcast := makeChannel(t, c, p, mempool.ChannelSpec{Name: "b", Capacity: 8})
	require.NoError(t, sendFrame(t.Context(), p, broadcast, 4, 8, mempool.FrameOptions{}))
	for f, err := range broadcast.Frames(t.Context(), mempool.SubscribeOptions{}) {
		require.NoError(t, err)
		require.ErrorIs(t, f.Requeue(), ErrInvalid)
		require.NoError(t, f.Ack())
		require.NoError(t, f.Release())
		break
	}
}

func TestAFrameThatCannotBeMappedIsSettledLikeAnyOther(t *testing.T) {
	for manual, want := range map[bool][]uint64{false: {1}, true: {0, 1}} {
		t.Run(fmt.Sprint("manual: ", manual), func(t *testing.T) {
			_, path := serve(t, server.Config{})
			c := dial(t, path)
			p := createPool(t, c, hostPool("p", 1<<20))
			ch := makeChannel(t, c, p, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
			for n := range uint64(2) {
				require.NoError(t, sendFrame(t.Context(), p, ch, n, 8, mempool.FrameOptions{}))
			}
			blind := dial(t, path)
			theirs, err := blind.TryOpenChannel(t.Context(), "c")
			require.NoError(t, err)
			sub, err := theirs.subscribe(t.Context(), mempool.SubscribeOptions{})
			require.NoError(t, err)
			sub.Channel().Pool = 99
			met := 0
			for f, err := range func(yield func(*Frame, error) bool) { sub.deliver(t.Context(), manual, yield) } {
				require.ErrorIs(t, err, ErrNotFound)
				assert.Nil(t, f.Lease)
				assert.ErrorIs(t, f.Ack(), ErrInvalid)
				if met++; met == 2 {
					break
				}
			}
			_, err = blind.Stats(t.Context()) // when the reply comes, the frames of blind are back in the queue
			require.NoError(t, err)
			got := take(t, ch, mempool.SubscribeOptions{}, len(want))
			slices.Sort(got)
			assert.Equal(t, want, got)
		})
	}
}
