package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/gpus"
)

func init() { children["fail and die"] = failAndDie }

// promised publishes a buffer under the name "x". The buffer's content is complete when the returned fence is reached.
func promised(t testing.TB, c *Client, p *Pool) (*Lease, *mempool.Clock, mempool.Fence) {
	t.Helper()
	clock, ready := unreached(t, c)
	l := allocate(t, p, 16)
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	return l, clock, ready
}

// gaveUp checks the error that a reader gets after the producer has called Fail for the content.
func gaveUp(t testing.TB, err error, reason string) {
	t.Helper()
	require.ErrorIs(t, err, ErrContentFailed)
	assert.NotErrorIs(t, err, ErrProducerDied)
	assert.ErrorContains(t, err, reason)
	assert.Equal(t, "content-failed", Code(err))
}

func TestContentThatFailedCannotBeLeased(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	l, clock, ready := promised(t, producer, p)
	require.NoError(t, clock.Fail(ready, "no light"))
	_, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
	gaveUp(t, err, "no light")
	_, err = consumer.Get(t.Context(), "x", LeaseOptions{Write: true})
	gaveUp(t, err, "no light")
	release(t, l)
}

func TestAReaderThatWaitsForOtherContentWaitsOnIfTheNewestHasFailed(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	p := createPool(t, producer, hostPool("p", 1<<20))
	first := allocate(t, p, 16)
	require.NoError(t, first.Publish(t.Context(), mempool.Publication{Name: "x"}))
	seen, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	clock, ready := unreached(t, producer)
	require.NoError(t, allocate(t, p, 16).Publish(t.Context(), mempool.Publication{Name: "x", Replace: true, Completion: mempool.Completion{Ready: &ready}}))
	require.NoError(t, clock.Fail(ready, "no light"))
	_, err = consumer.TryGet(t.Context(), "x", LeaseOptions{OtherThan: seen})
	gaveUp(t, err, "no light")
	came := make(chan uint64)
	go func() {
		l, err := consumer.Get(t.Context(), "x", LeaseOptions{OtherThan: seen})
		if assert.NoError(t, err) {
			came <- l.Version()
		}
		close(came)
	}()
	eventually(t, func() bool { return collect(t, producer.Sessions(t.Context()))[1].WaitsFor == `the name "x"` })
	require.NoError(t, allocate(t, p, 16).Publish(t.Context(), mempool.Publication{Name: "x", Replace: true}))
	assert.EqualValues(t, 3, <-came)
}

func TestAReaderThatWaitsIsToldThatTheContentFailed(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	l, clock, ready := promised(t, producer, createPool(t, producer, hostPool("p", 1<<20)))
	reader, err := consumer.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, reader.Check(t.Context()), "so far")
	read := make(chan error)
	go func() { read <- reader.CopyTo(context.Background(), make([]byte, 16), 0) }()
	require.NoError(t, clock.Fail(ready, "no light"))
	gaveUp(t, <-read, "no light")
	gaveUp(t, reader.Check(t.Context()), "no light")
	_, err = reader.Bytes(t.Context())
	gaveUp(t, err, "no light")
	release(t, reader)
	release(t, l)
}

func TestAGPUThatWaitsForContentThatFailedGoesOnAndCheckTells(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := gpuPool(t, c)
	gpus.NeedWords(t)
	clock, ready := unreached(t, c)
	out := allocate(t, p, 16)
	other := queueOf(t, out)
	require.NoError(t, out.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	reader, err := c.TryGet(t.Context(), "x", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, reader.WaitOn(t.Context(), other)) // the stream of the queue waits for the content
	require.NoError(t, reader.Check(t.Context()), "so far")
	require.NoError(t, clock.Fail(ready, "no light"))
	after, err := clock.Signal(other)
	require.NoError(t, err)
	if after != nil {
		require.NoError(t, clock.Await(t.Context(), *after), "the stream goes on")
	}
	gaveUp(t, reader.Check(t.Context()), "no light")
	release(t, reader)
	release(t, out)
}

func TestContentThatFailedBeforeItWasPublished(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	clock, ready := unreached(t, c)
	require.NoError(t, clock.Fail(ready, "no light"))
	l := allocate(t, p, 16)
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "x", Completion: mempool.Completion{Ready: &ready}}))
	_, err := c.TryGet(t.Context(), "x", LeaseOptions{})
	gaveUp(t, err, "no light")
	release(t, l)
}

func TestAClientWithoutTimelinesIsToldThatTheContentFailed(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	l, clock, ready := promised(t, c, createPool(t, c, hostPool("p", 1<<20)))
	old := greeted(t, path)
	old.Ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
	old.Send(3, &wire.Get{Name: "x"})
	old.Ask(4, &wire.StatsRequest{}, &wire.StatsReply{}) // after this reply, request 3 waits for the content
	require.NoError(t, clock.Fail(ready, "no light"))
	err := old.Reply(3, &wire.GrantReply{})
	require.ErrorIs(t, err, wire.CodeContentFailed)
	assert.ErrorContains(t, err, "no light")
	release(t, l)
}

func TestAFrameThatFailedComesWithAnErrorAndTheNextOneIsComplete(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		_, path := serve(t, server.Config{})
		producer, consumer := dial(t, path), dial(t, path)
		p := createPool(t, producer, spec)
		ch := makeChannel(t, producer, p, mempool.ChannelSpec{Capacity: 4, Mode: mempool.WorkQueue})
		clock, ready := unreached(t, producer)
		_, err := ch.Publish(t.Context(), allocate(t, p, 16), mempool.FrameOptions{Completion: mempool.Completion{Ready: &ready}})
		require.NoError(t, err)
		require.NoError(t, clock.Fail(ready, "no light"))
		require.NoError(t, sendFrame(t.Context(), p, ch, 2, 16, mempool.FrameOptions{}))
		there, err := consumer.TryOpenChannel(t.Context(), "c")
		require.NoError(t, err)
		for f, err := range there.Frames(t.Context(), mempool.SubscribeOptions{}) {
			require.NotNil(t, f, "%v", err)
			if f.Seq == 1 {
				gaveUp(t, err, "no light")
				assert.Nil(t, f.Lease)
				continue
			}
			require.NoError(t, err)
			n, err := verify(f)
			require.NoError(t, err)
			assert.EqualValues(t, 2, n)
			require.NoError(t, f.Release())
			break
		}
	})
}

func TestTheReasonIsOneLineOfBoundedLength(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	for given, want := range map[string]string{
		strings.Repeat("ü", 200):       strings.Repeat("ü", mempool.MaxReasonBytes/2),
		"a" + strings.Repeat("ü", 200): "a" + strings.Repeat("ü", (mempool.MaxReasonBytes-1)/2),
		"one\ntwo\x00\x1b[31m\xff":     "one two  [31m\uFFFD",
		"":                             "no reason given",
	} {
		l, clock, ready := promised(t, c, p)
		require.NoError(t, clock.Fail(ready, given))
		_, err := c.TryGet(t.Context(), "x", LeaseOptions{})
		gaveUp(t, err, "its producer says: "+want)
		assert.True(t, utf8.ValidString(err.Error()))
		assert.True(t, strings.HasSuffix(err.Error(), want), err)
		require.NoError(t, c.Unpublish(t.Context(), "x"))
		release(t, l)
	}
}

func TestContentFailsOnceAndNotAfterItIsComplete(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	l, clock, ready := promised(t, c, createPool(t, c, hostPool("p", 1<<20)))
	require.NoError(t, clock.Fail(ready, "no light"))
	require.NoError(t, clock.Fail(ready, "another reason"))
	require.ErrorIs(t, clock.Reach(ready), ErrInvalid)
	_, err := c.TryGet(t.Context(), "x", LeaseOptions{})
	gaveUp(t, err, "no light")
	release(t, l)

	clock, complete := unreached(t, c)
	require.NoError(t, clock.Reach(complete))
	assert.ErrorIs(t, clock.Fail(complete, "too late"), ErrInvalid)
	assert.ErrorIs(t, clock.Fail(mempool.Fence{Timeline: clock.Timeline() + 1, Value: 1}, "not mine"), ErrInvalid)
	assert.ErrorIs(t, clock.Fail(mempool.Fence{Timeline: clock.Timeline()}, "no fence"), ErrInvalid)
}

// The fences of two contents use the same word of a timeline. If the later content fails, the earlier content stays complete.
func TestWhatWasCompleteStaysCompleteWhenLaterContentFails(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	clock, first := unreached(t, c)
	second := clock.Next(first.Word)
	for name, ready := range map[string]*mempool.Fence{"first": &first, "second": &second} {
		l := allocate(t, p, 16)
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: name, Completion: mempool.Completion{Ready: ready}}))
		release(t, l)
	}
	require.NoError(t, clock.Reach(first))
	require.NoError(t, clock.Fail(second, "no light"))
	good, err := c.TryGet(t.Context(), "first", LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, good.CopyTo(t.Context(), make([]byte, 16), 0))
	release(t, good)
	_, err = c.TryGet(t.Context(), "second", LeaseOptions{})
	gaveUp(t, err, "no light")
}

// failAndDie publishes the buffer "kept". When failAndDie reads a line, it reports with Clock.Fail that the content has failed, and at once
// kills its own process.
func failAndDie() error {
	ctx := context.Background()
	c, err := Dial(ctx, DefaultSocket())
	if err != nil {
		return err
	}
	p, err := c.TryOpenPool(ctx, "p")
	if err != nil {
		return err
	}
	l, err := p.TryAllocate(ctx, mempool.Bytes(16))
	if err != nil {
		return err
	}
	clock, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	word, err := clock.Word(ctx)
	if err != nil {
		return err
	}
	ready := clock.Next(word)
	if err := l.Publish(ctx, mempool.Publication{Name: "kept", Keep: true, Completion: mempool.Completion{Ready: &ready}}); err != nil {
		return err
	}
	fmt.Println("published")
	if !bufio.NewScanner(os.Stdin).Scan() {
		return errors.New("nothing was told")
	}
	if err := clock.Fail(ready, "no light"); err != nil {
		return err
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	return self.Kill()
}

func TestTheReasonOutlivesTheProducer(t *testing.T) {
	svc, path := serve(t, server.Config{})
	c := dial(t, path)
	createPool(t, c, hostPool("p", 1<<20))
	producer := spawn(t, "fail and die", path, nil)
	require.Equal(t, "published", producer.says())
	reader, err := c.TryGet(t.Context(), "kept", LeaseOptions{})
	require.NoError(t, err)
	producer.tell("fail")
	gaveUp(t, reader.CopyTo(t.Context(), make([]byte, 16), 0), "no light")
	eventually(t, func() bool { return svc.Stats().Sessions == 1 })
	gaveUp(t, reader.Check(t.Context()), "no light")
	release(t, reader)
	_, err = c.TryGet(t.Context(), "kept", LeaseOptions{})
	gaveUp(t, err, "no light")
	require.NoError(t, c.Unpublish(t.Context(), "kept"))
}
