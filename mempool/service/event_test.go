package service

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func someEvent(t testing.TB) *mempool.Event {
	t.Helper()
	e, err := mempool.EventOf(make([]byte, mempool.EventBytes))
	require.NoError(t, err)
	return e
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
	assert.NotEmpty(t, w.Grant().Event)
	release(t, w)
	assert.Empty(t, other.get(t, "x", false).Grant().Event)
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
	err := l.Publish(mempool.Publication{Name: "x", Completion: mempool.Completion{Event: someEvent(t)}})
	assert.ErrorIs(t, err, mempool.ErrInvalid, "without a fence")
	release(t, l)
}
