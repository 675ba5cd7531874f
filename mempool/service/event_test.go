package service

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// onGPU makes the pool look like one of a GPU.
func onGPU(p *Pool) {
	p.info.Device = mempool.DeviceInfo{UUID: "GPU-01234567-89ab-cdef-0123-456789abcdef"}
}

func someEvent(t testing.TB) *mempool.Event {
	t.Helper()
	e, err := mempool.EventOf(make([]byte, mempool.EventBytes))
	require.NoError(t, err)
	return e
}

func TestAnEventAloneIsToldUntilItsPublisherSaysWhenTheWorkIsDone(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	onGPU(p)
	producer, consumer := hire(t, svc), hire(t, svc)
	e := someEvent(t)
	l := allocate(t, producer.Session, p, 10)
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Event: e, EventOnly: true}}))
	got := consumer.get(t, "x", false)
	assert.True(t, got.Info().EventOnly)
	assert.Equal(t, e.Handle(), got.Info().Event)
	assert.Empty(t, got.Info().Wait)

	done := producer.fence()
	require.NoError(t, l.ReleaseAt(false, []mempool.Fence{done}))
	later := consumer.get(t, "x", false)
	assert.False(t, later.Info().EventOnly)
	assert.Empty(t, later.Info().Event)
	assert.Equal(t, []mempool.Fence{done}, later.Info().Wait, "from now on a fence says it")
	release(t, later)
	release(t, got)
	producer.die()
	_, err := consumer.Get(context.Background(), "x", false, 0)
	assert.ErrorIs(t, err, mempool.ErrProducerDied, "it was never done")
	checkBooks(t, svc)
}

func TestContentWhosePublisherEndedBeforeItSaidThatItsEventIsDoneHasFailed(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	onGPU(p)
	producer, consumer := hire(t, svc), hire(t, svc)
	l := allocate(t, producer.Session, p, 10)
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Event: someEvent(t), EventOnly: true}}))
	got := consumer.get(t, "x", false)
	producer.die()
	assert.Equal(t, []Failed{{Buffers: []uint64{got.Info().Buffer}}}, told[Failed](consumer))
	assert.ErrorIs(t, got.Check(context.Background()), mempool.ErrProducerDied)
	_, err := consumer.Get(context.Background(), "x", false, 0)
	assert.ErrorIs(t, err, mempool.ErrProducerDied)
	release(t, got)
	checkBooks(t, svc)
}

func TestASessionWithoutTimelinesGetsNothingThatOnlyAnEventStandsFor(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	onGPU(p)
	producer, old := hire(t, svc), openClient(t, svc, mempool.Self())
	l := allocate(t, producer.Session, p, 10)
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Event: someEvent(t), EventOnly: true}}))
	_, err := old.Get(context.Background(), "x", false, time.Hour)
	assert.ErrorIs(t, err, mempool.ErrUnavailable)
	require.NoError(t, l.ReleaseAt(false, nil))
	got, err := old.Get(context.Background(), "x", false, 0)
	require.NoError(t, err, "by then it is complete")
	release(t, got)
}

func TestWhoWritesAnewEndsTheEventOfTheContentBefore(t *testing.T) {
	svc := newService(t)
	p, _ := fakePool(t, open(t, svc), 1<<20)
	producer, other := hire(t, svc), hire(t, svc)
	l := allocate(t, producer.Session, p, 10)
	ready := producer.fence()
	require.NoError(t, l.Publish(mempool.Publication{Name: "x", Keep: true, Completion: mempool.Completion{Event: someEvent(t), Ready: &ready}}))
	release(t, l)
	w := other.get(t, "x", true)
	assert.NotEmpty(t, w.Info().Event)
	release(t, w)
	assert.Empty(t, other.get(t, "x", false).Info().Event)
}

func TestEventsThatSayNothingAreRefused(t *testing.T) {
	for _, n := range []int{0, mempool.EventBytes - 1, mempool.EventBytes + 1} {
		_, err := mempool.EventOf(make([]byte, n))
		assert.ErrorIs(t, err, mempool.ErrInvalid, "%d bytes", n)
		_, err = mempool.OpenEvent("", make([]byte, n))
		assert.ErrorIs(t, err, mempool.ErrInvalid, "%d bytes", n)
	}
	svc := newService(t)
	s := open(t, svc)
	host := createPool(t, s, mempool.PoolSpec{Name: "host", Kind: mempool.Host, MaxBytes: 1 << 20})
	l := allocate(t, s, host, 10)
	for name, c := range map[string]mempool.Completion{
		"that is only passed on":      {Event: someEvent(t)},
		"alone on memory of the CPU":  {Event: someEvent(t), EventOnly: true},
		"none that is to stand alone": {EventOnly: true},
	} {
		assert.ErrorIs(t, l.Publish(mempool.Publication{Name: "x", Completion: c}), mempool.ErrInvalid, name)
	}
	release(t, l)
	remote := hire(t, svc)
	l = allocate(t, remote.Session, host, 10)
	err := l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Event: someEvent(t), EventOnly: true}})
	assert.ErrorIs(t, err, mempool.ErrInvalid, "of another process, on memory of the CPU")
	release(t, l)
}

// gpuEvent is an event of the first GPU, and a stream there with its queue.
func gpuEvent(t testing.TB) (*mempool.Event, *cuda.Stream, mempool.Queue) {
	t.Helper()
	ctx := gpuContext(t)
	stream, err := ctx.NewStream()
	require.NoError(t, err)
	e, err := mempool.NewEvent(ctx)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.NoError(t, stream.Synchronize())
		assert.NoError(t, stream.Close())
	})
	return e, stream, mempool.StreamQueue(ctx, stream)
}

func TestAnEventOfThisProcessIsWaitedForLikeAFence(t *testing.T) {
	for name, alone := range map[string]bool{"beside a fence": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			svc := newService(t)
			s := open(t, svc)
			p := gpuPool(t, s)
			clock, stuck := unreached(t, s)
			l := allocate(t, s, p, 1<<20)
			e, stream, q := gpuEvent(t)
			publish := mempool.Publication{Name: "x", Completion: mempool.Completion{Event: e, EventOnly: alone}}
			assert.ErrorIs(t, l.Publish(publish), mempool.ErrInvalid, "it was never recorded")
			stop(t, q, clock, stuck)
			ptr, err := l.Pointer()
			require.NoError(t, err)
			require.NoError(t, stream.Memset8(cuda.DevicePtr(ptr), 7, 1<<20))
			require.NoError(t, e.Record(q))
			require.NoError(t, l.Publish(publish))

			got, err := s.Get(t.Context(), "x", false, 0)
			require.NoError(t, err)
			assert.Equal(t, alone, got.Info().EventOnly)
			assert.Equal(t, alone, len(got.Info().Wait) == 0)
			opened, err := got.ReadyEvent()
			require.NoError(t, err)
			assert.Same(t, e, opened)
			_, late, reader := gpuEvent(t)
			require.NoError(t, got.WaitOn(t.Context(), reader))
			done, err := late.Query()
			require.NoError(t, err)
			assert.False(t, done, "the reader's stream waits")
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			assert.ErrorIs(t, got.WaitOn(ctx, mempool.CPU), context.DeadlineExceeded)

			require.NoError(t, l.Release(false))
			if alone {
				again, err := s.Get(t.Context(), "x", false, 0)
				require.NoError(t, err)
				assert.False(t, again.Info().EventOnly)
				assert.Len(t, again.Info().Wait, 1, "the publisher's work ends with the event")
				require.NoError(t, again.Release(false))
			}
			require.NoError(t, clock.Reach(stuck))
			seen := make([]byte, 1<<20)
			require.NoError(t, got.CopyTo(seen, 0))
			assert.Equal(t, byte(7), seen[len(seen)-1])
			require.NoError(t, got.Release(false))
		})
	}
}
