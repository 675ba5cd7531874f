package service

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// onGPU makes the pool look like a pool of GPU memory.
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
	_, err := consumer.getLease(context.Background(), "x", false, 0)
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
	assert.True(t, hasFailed(got))
	_, err := consumer.getLease(context.Background(), "x", false, 0)
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
	_, err := old.getLease(context.Background(), "x", false, time.Hour)
	assert.ErrorIs(t, err, mempool.ErrUnavailable)
	require.NoError(t, l.ReleaseAt(false, nil))
	got, err := old.getLease(context.Background(), "x", false, 0)
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
	remote := hire(t, svc)
	host := createPool(t, remote.Session, mempool.PoolSpec{Name: "host", Kind: mempool.Host, MaxBytes: 1 << 20})
	l := allocate(t, remote.Session, host, 10)
	err := l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Event: someEvent(t), EventOnly: true}})
	assert.ErrorIs(t, err, mempool.ErrInvalid, "alone on memory of the CPU")
	release(t, l)
}
