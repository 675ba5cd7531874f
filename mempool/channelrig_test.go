package mempool

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stream is a channel with its pool and a producer.
type stream struct {
	testing.TB
	svc      *Service
	owner    *Session
	pool     *Pool
	producer *worker
	info     ChannelInfo
}

func newStream(t testing.TB, spec ChannelSpec) *stream {
	t.Helper()
	svc := newService(t)
	owner := open(t, svc)
	p, _ := fakePool(t, owner, 1<<20)
	spec.Name, spec.Pool, spec.ThroughService = "frames", p.info.ID, true
	info, err := owner.MakeChannel(spec)
	require.NoError(t, err)
	return &stream{t, svc, owner, p, hire(t, svc), info}
}

// try sends a frame without waiting.
func (s *stream) try(ready *Ticket) (uint64, error) {
	s.Helper()
	l := allocate(s, s.producer.Session, s.pool, 10)
	n, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{Completion: Completion{Ready: ready}})
	if waits != nil {
		n, err = waits.Wait(context.Background(), 0)
	}
	if err != nil {
		release(s, l) // it lives on
	}
	return n, err
}

func (s *stream) send(n int) {
	s.Helper()
	for range n {
		_, err := s.try(nil)
		require.NoError(s, err)
	}
}

// listener is a subscriber in another process.
type listener struct {
	*worker
	sub    uint64
	inHand []Delivered
}

func (s *stream) listen(credit uint64, o SubscribeOptions) *listener {
	s.Helper()
	w := hire(s, s.svc)
	return s.join(w, credit, o)
}

func (s *stream) join(w *worker, credit uint64, o SubscribeOptions) *listener {
	s.Helper()
	sub, err := w.Subscribe(s.info.ID, o)
	require.NoError(s, err)
	require.NoError(s, w.Credit(sub, credit))
	return &listener{worker: w, sub: sub}
}

// got are the numbers of the frames that came; those that failed are negative.
func (l *listener) got() (numbers []int) {
	for _, d := range told[Delivered](l.worker) {
		n := int(d.Seq)
		if errors.Is(d.Err, ErrProducerDied) {
			n = -n
		} else {
			l.inHand = append(l.inHand, d)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// done releases the oldest frame in hand.
func (l *listener) done(t testing.TB, again bool) {
	t.Helper()
	require.NotEmpty(t, l.inHand)
	require.NoError(t, l.inHand[0].Lease.Release(again))
	l.inHand = l.inHand[1:]
}

func (l *listener) ended() []Ended { return told[Ended](l.worker) }

// allGone says that the channel has left nothing behind.
func (s *stream) allGone() {
	s.Helper()
	checkBooks(s, s.svc)
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	assert.Empty(s, s.svc.channels)
	assert.Empty(s, s.svc.channelByID)
	assert.Empty(s, s.svc.buffers)
	assert.Zero(s, s.pool.channels)
}
