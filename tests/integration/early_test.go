package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// earlyFrames is how many frames the producer publishes as soon as it has made the channel: many more than the channel keeps.
const earlyFrames = 1000

// earlyConsumer is a program that waits for the channel, takes all its frames, and says their numbers.
const earlyConsumer = `
import sys, poolbridge
client = poolbridge.connect(sys.argv[1])
with client.subscribe("c", timeout=None) as frames:
    print(*(frame.meta["n"] for frame in frames))
`

// earlyConsumerOfLoop is earlyConsumer for asyncio.
const earlyConsumerOfLoop = `
import asyncio, sys, poolbridge
async def main():
    async with await poolbridge.connect_async(sys.argv[1]) as client:
        async with client.subscribe("c", timeout=None) as frames:
            print(*[frame.meta["n"] async for frame in frames])
asyncio.run(main())
`

// earlyProducer is a program that makes the channel, publishes frames at once, and closes the channel.
const earlyProducer = `
import sys, numpy, poolbridge
client = poolbridge.connect(sys.argv[1])
client.open_pool("p")
channel = client.create_channel("c", pool="p", mode=sys.argv[2], capacity=4)
for n in range(int(sys.argv[3])):
    channel.publish(numpy.full(1000, n % 251, "uint8"), meta={"n": n})
channel.close()
`

// early is a service whose pool "p" has no channel yet.
type early struct {
	*testing.T
	*rig.Service
	python *rig.Interpreter
	client *bridge.Client
	pool   *bridge.Pool
}

func newEarly(t *testing.T, kind mempool.Kind) *early {
	e := &early{T: t, Service: rig.Serve(t, "--pool", fmt.Sprintf("name=p,kind=%s,max=64MiB", kind)), python: rig.Python(t)}
	e.client = dial(t, e.Service)
	var err error
	e.pool, err = e.client.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	return e
}

// await returns when n sessions wait for the channel.
func (e *early) await(n int) {
	e.Helper()
	require.Eventually(e, func() bool {
		waiting := 0
		for s, err := range e.client.Sessions(e.Context()) {
			require.NoError(e, err)
			if s.WaitsFor == `channel "c"` {
				waiting++
			}
		}
		return waiting == n
	}, time.Minute, time.Millisecond)
}

// subscribe waits for the channel in another goroutine. The function `numbers` returns the numbers of the frames that came.
func (e *early) subscribe() (numbers func() []int) {
	c := dial(e.T, e.Service)
	var got []int
	var done sync.WaitGroup
	done.Go(func() {
		sub, err := c.Subscribe(e.Context(), "c", bridge.SubscribeOptions{})
		if !assert.NoError(e, err) {
			return
		}
		for f, err := range sub.Frames(e.Context()) {
			if !assert.NoError(e, err) {
				return
			}
			got = append(got, int(f.Meta["n"].(int64)))
			assert.NoError(e, f.Release())
		}
	})
	return func() []int { done.Wait(); return got }
}

// make makes the channel, publishes frames at once, and closes the channel.
func (e *early) make(mode mempool.ChannelMode, frames int) error {
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	ch, err := e.client.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: e.pool.Info().ID, Mode: mode, Capacity: 4})
	if err != nil {
		return err
	}
	p, err := ch.Publisher(ctx, mempool.Bytes(1000))
	if err != nil {
		return err
	}
	defer p.Close()
	for n := range frames {
		l, err := p.Loan(ctx)
		if err != nil {
			return err
		}
		if err := l.Fill(ctx, 0, 1000, byte(n)); err != nil {
			return err
		}
		if _, err := p.Publish(ctx, l, mempool.FrameOptions{Meta: map[string]any{"n": n}}); err != nil {
			return fmt.Errorf("frame %d: %w", n+1, err)
		}
	}
	return ch.Close(ctx)
}

func numbersOf(t *testing.T, line string) (numbers []int) {
	t.Helper()
	for text := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		numbers = append(numbers, n)
	}
	return numbers
}

// check compares what each consumer got with what was sent.
func (e *early) check(mode mempool.ChannelMode, got [][]int) {
	e.Helper()
	var all []int
	for n := range earlyFrames {
		all = append(all, n)
	}
	if mode == mempool.WorkQueue {
		together := slices.Concat(got...)
		slices.Sort(together)
		got = [][]int{together}
	}
	for _, one := range got {
		require.Equal(e, all, one)
	}
}

func TestConsumersThatWaitForTheirChannelGetEveryFrame(t *testing.T) {
	for _, kind := range []mempool.Kind{mempool.Host, mempool.VMM} {
		if kind == mempool.VMM && kind.Probe("0") != nil {
			continue
		}
		for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
			for _, consumers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s, %s, %d of Python, producer of Go", kind, mode, consumers), func(t *testing.T) {
					e := newEarly(t, kind)
					var waiting []*rig.Script
					for i := range consumers {
						text := earlyConsumer
						if i%2 == 1 {
							text = earlyConsumerOfLoop
						}
						waiting = append(waiting, e.python.Start(t, text, e.Socket))
					}
					e.await(consumers)
					require.NoError(t, e.make(mode, earlyFrames))
					var got [][]int
					for _, w := range waiting {
						got = append(got, numbersOf(t, w.End(t)))
					}
					e.check(mode, got)
				})
				t.Run(fmt.Sprintf("%s, %s, %d of Go, producer of Python", kind, mode, consumers), func(t *testing.T) {
					e := newEarly(t, kind)
					var waiting []func() []int
					for range consumers {
						waiting = append(waiting, e.subscribe())
					}
					e.await(consumers)
					e.python.Start(t, earlyProducer, e.Socket, string(mode), strconv.Itoa(earlyFrames)).End(t)
					var got [][]int
					for _, numbers := range waiting {
						got = append(got, numbers())
					}
					e.check(mode, got)
				})
			}
		}
	}
}

func TestAConsumerThatIsKilledWhileItWaitsHoldsUpNobody(t *testing.T) {
	e := newEarly(t, mempool.Host)
	numbers := e.subscribe()
	victim := e.python.Start(t, earlyConsumer, e.Socket)
	e.await(2)
	victim.Kill(t)
	e.await(1)
	require.NoError(t, e.make(mempool.Broadcast, earlyFrames))
	e.check(mempool.Broadcast, [][]int{numbers()})
}

func TestAConsumerThatIsKilledWhenItsChannelAppearsHoldsUpNobody(t *testing.T) {
	e := newEarly(t, mempool.Host)
	for range 10 {
		numbers := e.subscribe()
		victim := e.python.Start(t, earlyConsumer, e.Socket)
		e.await(2)
		made := make(chan error, 1)
		go func() { made <- e.make(mempool.Broadcast, earlyFrames) }()
		victim.Kill(t)
		require.NoError(t, <-made)
		e.check(mempool.Broadcast, [][]int{numbers()})
	}
}
