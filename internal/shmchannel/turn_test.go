package shmchannel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func waits(t *testing.T, p *testProducer) (done chan uint64) {
	t.Helper()
	done = make(chan uint64, 1)
	record := *p.next()
	p.free = p.free[:len(p.free)-1]
	go func() {
		n, err := p.Publish(within(t), &record)
		assert.NoError(t, err)
		done <- n
	}()
	require.Eventually(t, func() bool { return p.sequencer.waiting[p.seat].Load() != 0 }, time.Minute, 100*time.Microsecond)
	return done
}

func TestProducersThatWaitGetRoomInTurn(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	first, second, third := r.producer(4), r.producer(4), r.producer(4)
	for _, p := range []*testProducer{first, second, third} {
		p.turn.patience = time.Hour // with this patience, no turn ends early on a slow machine
	}
	c := r.consumer(MemberSpec{})
	first.publish()
	a := waits(t, third)
	b := waits(t, second)
	d := waits(t, first)
	for n, done := range []chan uint64{a, b, d} {
		c.release(c.take())
		assert.EqualValues(t, n+2, <-done)
	}
}

// If a producer takes a ticket and then stops, it delays the other producers only once, by 2 ms.
func TestAProducerThatStandsStillLosesItsTurn(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, stopped, c := r.producer(8), r.producer(4), r.consumer(MemberSpec{})
	p.publish()
	s := &r.host.sequencer
	s.waiting[stopped.seat].Store(s.tickets.Add(1))
	done := waits(t, p)
	c.release(c.take())
	assert.EqualValues(t, 2, <-done)
	c.release(c.take())
	p.publish() // the stopped producer delays nobody a second time
	c.release(c.take())

	s.waiting[stopped.seat].Store(s.tickets.Add(1))
	require.ErrorIs(t, p.publishError(), ErrFull, "there is room, but it is another's turn")
	require.NoError(t, r.host.Gone(stopped.member))
	assert.Zero(t, s.waiting[stopped.seat].Load())
	p.publish()
}

// Another producer can write any ticket into its word, and a new one each time that somebody looks.
func TestAProducerThatShowsMoreAndMoreTicketsHoldsNobodyUpForEver(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, greedy, c := r.producer(4), r.producer(4), r.consumer(MemberSpec{})
	p.turn.patience = time.Hour // time alone ends no turn
	for frame := range 2 {
		for i := range uint64(MaxProducers) {
			r.host.sequencer.waiting[greedy.seat].Store(1 + i)
			require.ErrorIs(t, p.publishError(), ErrFull, "frame %d, ticket %d", frame, i)
		}
		r.host.sequencer.waiting[greedy.seat].Store(MaxProducers + 1)
		p.publish()
		c.release(c.take())
	}
}

// keen is a Spinner that records how a member calls it.
type keen struct {
	willing bool
	began   int
	ended   []bool
	asked   func() // called in Begin
}

func (k *keen) Begin() bool {
	k.began++
	k.asked()
	return k.willing
}

func (k *keen) End(found bool) { k.ended = append(k.ended, found) }

func TestAMemberLooksOnlyIfThatIsWorthIt(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p, c := r.producer(2), r.consumer(MemberSpec{})
	k := &keen{}
	c.spin, c.spinner = time.Minute, k
	ctx, cancel := context.WithCancel(t.Context())
	k.asked = cancel
	var f Frame
	require.ErrorIs(t, c.Take(ctx, &f), context.Canceled)
	require.Positive(t, k.began)
	require.Empty(t, k.ended)

	k.willing = true
	over, cancel := context.WithCancel(t.Context())
	k.asked = cancel
	require.ErrorIs(t, c.Take(over, &f), context.Canceled)
	require.Equal(t, []bool{false}, k.ended)
	k.asked = func() {}

	taken := make(chan error)
	began := k.began
	go func() { taken <- c.Take(t.Context(), &f) }()
	for looking := false; !looking; {
		c.mu.Lock()
		looking = k.began > began
		c.mu.Unlock()
	}
	p.publish()
	require.NoError(t, <-taken)
	require.Equal(t, []bool{false, true}, k.ended)
}
