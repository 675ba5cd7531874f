package mempool

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCreditBoundsWhatIsOnItsWay(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 8})
	a := s.listen(2, SubscribeOptions{})
	s.send(4)
	assert.Equal(t, []int{1, 2}, a.got())
	a.done(t, false)
	assert.Equal(t, []int{3}, a.got(), "a release gives the credit back")
	require.NoError(t, a.Ack(a.inHand[0].Lease.ID()))
	a.done(t, false)
	assert.Equal(t, []int{4}, a.got(), "it does so once")
	assert.ErrorIs(t, a.Credit(a.sub, MaxCredit-1), ErrInvalid, "two frames are not acknowledged")
	require.NoError(t, a.Credit(a.sub, MaxCredit-2))
	assert.ErrorIs(t, a.Credit(a.sub, 1<<63), ErrInvalid)
	assert.ErrorIs(t, a.Credit(a.sub, 1), ErrInvalid, "more than it can have")
}

func TestSendsAreCarriedOutInTheirOrder(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 1})
	a := s.listen(8, SubscribeOptions{})
	s.send(1)
	var waiting []*Sending
	var leases []*Lease
	for range 3 {
		l := allocate(t, s.producer.Session, s.pool, 10)
		_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
		require.NoError(t, err)
		require.NotNil(t, waits, "however they come, none passes those before it")
		waiting, leases = append(waiting, waits), append(leases, l)
	}
	numbers := make([]uint64, 3)
	done := make(chan int)
	for i := 2; i >= 0; i-- { // the first that waits
		go func() {
			n, err := waiting[i].Wait(context.Background(), patience)
			assert.NoError(t, err)
			numbers[i] = n
			done <- i
		}()
	}
	for i := range 3 {
		a.got()
		a.done(t, false)
		assert.Equal(t, i, <-done)
	}
	assert.Equal(t, []uint64{2, 3, 4}, numbers)
	for _, l := range leases {
		assert.ErrorIs(t, l.Release(false), ErrReleased)
	}
}

func TestASendThatGivesUpLeavesItsPlaceInTheLine(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 1})
	a := s.listen(8, SubscribeOptions{})
	s.send(1)
	send := func() *Sending {
		l := allocate(t, s.producer.Session, s.pool, 10)
		_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
		require.NoError(t, err)
		return waits
	}
	first, second := send(), send()
	_, err := second.Wait(context.Background(), 0)
	assert.ErrorIs(t, err, ErrTimeout)
	third := send()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = first.Wait(ctx, patience)
	assert.ErrorIs(t, err, context.Canceled)
	a.got()
	a.done(t, false)
	n, err := third.Wait(context.Background(), 0)
	require.NoError(t, err)
	assert.EqualValues(t, 2, n)
}

func TestShuttingEndsAfterTheLastFrame(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 4})
	done, behind := s.listen(8, SubscribeOptions{}), s.listen(1, SubscribeOptions{})
	unborn, err := hire(t, s.svc).Subscribe(s.info.ID, SubscribeOptions{})
	require.NoError(t, err)
	s.send(3)
	other, err := s.svc.OpenSession(Peer{UID: 4711}, func(Notice) {})
	require.NoError(t, err)
	assert.ErrorIs(t, other.ShutChannel(s.info.ID), ErrDenied)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	assert.ErrorIs(t, s.owner.ShutChannel(s.info.ID), ErrClosed)
	_, err = s.try(nil)
	assert.ErrorIs(t, err, ErrClosed)
	assert.Equal(t, []int{1, 2, 3}, done.got())
	assert.Equal(t, []Ended{{Subscription: done.sub}}, done.ended())
	assert.Empty(t, behind.ended())
	require.NoError(t, behind.Credit(behind.sub, 2))
	assert.Equal(t, []int{1, 2, 3}, behind.got())
	assert.Equal(t, []Ended{{Subscription: behind.sub}}, behind.ended())
	assert.ErrorIs(t, behind.Credit(behind.sub, 1), ErrClosed)
	assert.ErrorIs(t, behind.Unsubscribe(behind.sub), ErrClosed)
	_ = unborn
	for _, l := range []*listener{done, behind} {
		for len(l.inHand) > 0 {
			l.done(t, false)
		}
	}
	_, err = s.owner.MakeChannel(ChannelSpec{Name: "frames", Pool: s.pool.info.ID, Capacity: 9, ThroughService: true})
	assert.NoError(t, err, "the name is free")
}

// line puts sends into a full channel's line; each frame is sent once there is room, and its error comes out.
func (s *stream) line(n int) []chan error {
	s.Helper()
	var sent []chan error
	for range n {
		l := allocate(s, s.producer.Session, s.pool, 10)
		_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
		require.NoError(s, err)
		require.NotNil(s, waits)
		done := make(chan error, 1)
		go func() {
			_, err := waits.Wait(context.Background(), patience)
			done <- err
		}()
		sent = append(sent, done)
	}
	return sent
}

func TestShuttingDoesNotOvertakeSendsThatWait(t *testing.T) {
	for _, mode := range []ChannelMode{Broadcast, WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := newStream(t, ChannelSpec{Mode: mode, Capacity: 1})
			a := s.listen(0, SubscribeOptions{})
			s.send(1)
			sent := s.line(3)
			require.NoError(t, s.owner.ShutChannel(s.info.ID))
			_, err := s.try(nil)
			require.ErrorIs(t, err, ErrClosed, "what comes later")
			require.NoError(t, a.Credit(a.sub, 1))
			for i := range 4 {
				require.Equal(t, []int{i + 1}, a.got())
				if i < len(sent) {
					require.Empty(t, a.ended())
				}
				a.done(t, false)
				if i < len(sent) {
					require.NoError(t, <-sent[i])
				}
			}
			require.Equal(t, []Ended{{Subscription: a.sub}}, a.ended())
			s.allGone()
		})
	}
}

func TestSendsThatWaitInAShutChannelAreOverWithItsLastSubscriber(t *testing.T) {
	for _, mode := range []ChannelMode{Broadcast, WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := newStream(t, ChannelSpec{Mode: mode, Capacity: 1})
			a := s.listen(0, SubscribeOptions{})
			s.send(1)
			sent := s.line(2)
			require.NoError(t, s.owner.ShutChannel(s.info.ID))
			require.NoError(t, a.Unsubscribe(a.sub))
			for _, one := range sent {
				assert.ErrorIs(t, <-one, ErrClosed)
			}
		})
	}
}

func TestASendThatGivesUpInAShutChannelLetsItEnd(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 1})
	a := s.listen(1, SubscribeOptions{})
	s.send(1)
	require.Equal(t, []int{1}, a.got())
	l := allocate(t, s.producer.Session, s.pool, 10)
	_, waits, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
	require.NoError(t, err)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	require.Empty(t, a.ended())
	_, err = waits.Wait(context.Background(), 0)
	require.ErrorIs(t, err, ErrTimeout)
	require.Len(t, a.ended(), 1)
}

func TestWhoSubscribesIsToldOfTheEndOnlyOnceItKnowsTheSubscription(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 4})
	w := hire(t, s.svc)
	sub, err := w.Subscribe(s.info.ID, SubscribeOptions{})
	require.NoError(t, err)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	assert.Empty(t, told[Ended](w))
	require.NoError(t, w.Credit(sub, 4))
	assert.Len(t, told[Ended](w), 1)
	s.allGone()
}

func TestDestroyingThePoolEndsItsChannels(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 4})
	a := s.listen(1, SubscribeOptions{})
	s.send(3)
	require.Equal(t, []int{1}, a.got())
	l := allocate(t, s.producer.Session, s.pool, 10)
	require.NoError(t, s.owner.DestroyPool(s.pool.info.ID))
	ends := a.ended()
	require.Len(t, ends, 1)
	assert.ErrorIs(t, ends[0].Err, ErrClosed)
	_, _, err := s.producer.Send(s.info.ID, l.ID(), FrameOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	_, err = s.owner.MakeChannel(ChannelSpec{Name: "late", Pool: s.pool.info.ID, Capacity: 1, ThroughService: true})
	assert.ErrorIs(t, err, ErrClosed)
	release(t, l)
	a.done(t, false)
	s.allGone()
}

func TestTheFramesOfADeadProducerAreTombstones(t *testing.T) {
	for _, mode := range []ChannelMode{Broadcast, WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := newStream(t, ChannelSpec{Mode: mode, Capacity: 8})
			a := s.listen(2, SubscribeOptions{Full: map[ChannelMode]FullPolicy{Broadcast: Block}[mode]})
			for i := range 5 {
				var ready *Ticket
				if i%2 == 1 {
					ticket := s.producer.ticket()
					ready = &ticket
				}
				_, err := s.try(ready)
				require.NoError(t, err)
			}
			s.producer.reach(Ticket{Word: workerWord, Value: 1}) // frame 2 is complete, frame 4 never will be
			assert.Equal(t, []int{1, 2}, a.got())
			s.producer.die()
			assert.Empty(t, told[Failed](a.worker))
			require.NoError(t, a.Credit(a.sub, 8))
			assert.Equal(t, []int{3, -4, 5}, a.got())
			for len(a.inHand) > 0 {
				a.done(t, false)
			}
			require.NoError(t, s.owner.ShutChannel(s.info.ID))
			assert.Len(t, a.ended(), 1)
			s.allGone()
		})
	}
}

func TestOnlyAWriteLeaseOfTheChannelsPoolCanBeSent(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	elsewhere := createPool(t, s.owner, PoolSpec{Name: "elsewhere", Kind: Host, MaxBytes: 1 << 16})
	send := func(l *Lease, o FrameOptions) error {
		_, waits, err := l.session.Send(s.info.ID, l.ID(), o)
		assert.Nil(t, waits)
		return err
	}
	foreign := allocate(t, s.producer.Session, elsewhere, 10)
	assert.ErrorIs(t, send(foreign, FrameOptions{}), ErrInvalid)
	l := allocate(t, s.producer.Session, s.pool, 10)
	many := make(map[string]string)
	for _, k := range strings.Split("abcdefghijklmnopq", "") {
		many[k] = ""
	}
	other := hire(t, s.svc).ticket()
	event, err := EventOf(make([]byte, EventBytes))
	require.NoError(t, err)
	for name, o := range map[string]FrameOptions{
		"a tensor that does not fit": {Tensor: &Tensor{DType: Float64, Shape: []uint64{2}}},
		"too many entries":           {Meta: many},
		"a long key":                 {Meta: map[string]string{strings.Repeat("k", MaxMetaBytes+1): ""}},
		"a long value":               {Meta: map[string]string{"": strings.Repeat("v", MaxMetaBytes+1)}},
		"an event alone":             {Completion: Completion{Event: event, EventOnly: true}},
		"another's ticket":           {Completion: Completion{Ready: &other}},
	} {
		assert.ErrorIs(t, send(l, o), ErrInvalid, name)
	}
	_, _, err = s.producer.Send(99, l.ID(), FrameOptions{})
	assert.ErrorIs(t, err, ErrNotFound)
	_, _, err = s.producer.Send(s.info.ID, 99, FrameOptions{})
	assert.ErrorIs(t, err, ErrNotFound)
	s.producer.publish(t, l, "x", nil)
	assert.ErrorIs(t, send(l, FrameOptions{}), ErrInvalid, "a read lease")
	release(t, l)
	assert.ErrorIs(t, send2(s, l), ErrReleased)
	w := s.producer.get(t, "x", true)
	require.NoError(t, send(w, FrameOptions{}))
	_, err = s.producer.Get(context.Background(), "x", true, 0)
	assert.ErrorIs(t, err, ErrBusy, "a frame is written by nobody")
	release(t, s.producer.get(t, "x", false))
	checkBooks(t, s.svc)
}

func send2(s *stream, l *Lease) error {
	_, _, err := l.session.Send(s.info.ID, l.ID(), FrameOptions{})
	return err
}

func TestChannelsAreForWhoMayUseThePool(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	stranger, err := s.svc.OpenSession(Peer{UID: 4711}, func(Notice) {})
	require.NoError(t, err)
	stranger.UseTimelines()
	_, err = stranger.FindChannel(context.Background(), "frames", 0)
	assert.ErrorIs(t, err, ErrDenied)
	_, err = stranger.Subscribe(s.info.ID, SubscribeOptions{})
	assert.ErrorIs(t, err, ErrDenied)
	_, err = stranger.MakeChannel(ChannelSpec{Name: "mine", Pool: s.pool.info.ID, Capacity: 1, ThroughService: true})
	assert.ErrorIs(t, err, ErrDenied)
	assert.ErrorIs(t, stranger.ShutChannel(s.info.ID), ErrDenied)
}

func TestChannelsAreFoundByName(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	ctx := context.Background()
	same, err := s.producer.MakeChannel(ChannelSpec{Name: "frames", Pool: s.pool.info.ID, Mode: Broadcast, Capacity: 2, Full: Block, ThroughService: true})
	require.NoError(t, err)
	assert.Equal(t, s.info, same)
	_, err = s.producer.MakeChannel(ChannelSpec{Name: "frames", Pool: s.pool.info.ID, Capacity: 3, ThroughService: true})
	assert.ErrorIs(t, err, ErrExists)
	found, err := s.producer.FindChannel(ctx, "frames", 0)
	require.NoError(t, err)
	assert.Equal(t, s.info, found)
	_, err = s.producer.FindChannel(ctx, "other", 0)
	assert.ErrorIs(t, err, ErrNotFound)
	_, err = s.producer.FindChannel(ctx, "other", 1)
	assert.ErrorIs(t, err, ErrTimeout)
	got := make(chan ChannelInfo)
	go func() {
		info, err := s.producer.FindChannel(ctx, "other", patience)
		assert.NoError(t, err)
		got <- info
	}()
	made, err := s.owner.MakeChannel(ChannelSpec{Name: "other", Pool: s.pool.info.ID, Capacity: 1, ThroughService: true})
	require.NoError(t, err)
	assert.Equal(t, made, <-got)
	for _, spec := range []ChannelSpec{
		{Name: "", Capacity: 1}, {Name: "x"}, {Name: "x", Capacity: -1}, {Name: "x", Capacity: MaxCapacity + 1},
		{Name: "x", Capacity: 1, Mode: "multicast"}, {Name: "x", Capacity: 1, Full: "panic"}, {Name: "\n", Capacity: 1},
	} {
		spec.Pool = s.pool.info.ID
		_, err := s.owner.MakeChannel(spec)
		assert.ErrorIs(t, err, ErrInvalid, "%+v", spec)
	}
	_, err = s.owner.MakeChannel(ChannelSpec{Name: "x", Pool: 99, Capacity: 1, ThroughService: true})
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestTheNumbersOfChannelsAndSubscriptionsAreBounded(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	w := hire(t, s.svc)
	for range MaxSubscriptions {
		s.join(w, 1, SubscribeOptions{})
	}
	_, err := w.Subscribe(s.info.ID, SubscribeOptions{})
	assert.ErrorIs(t, err, ErrLimit)
	w.die()
	for i := range MaxChannels - 1 {
		_, err := s.owner.MakeChannel(ChannelSpec{Name: fmt.Sprint("channel ", i), Pool: s.pool.info.ID, Capacity: 1, ThroughService: true})
		require.NoError(t, err)
	}
	_, err = s.owner.MakeChannel(ChannelSpec{Name: "more", Pool: s.pool.info.ID, Capacity: 1, ThroughService: true})
	assert.ErrorIs(t, err, ErrLimit)
	require.NoError(t, s.owner.DestroyPool(s.pool.info.ID))
	s.allGone()
}

func TestAPoolThatIsDestroyedTakesNoOtherChannelsName(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 2})
	slow := s.listen(0, SubscribeOptions{})
	s.send(1)
	require.NoError(t, s.owner.ShutChannel(s.info.ID))
	require.Empty(t, slow.ended(), "it lives until the last frame is taken")
	other := createPool(t, s.owner, PoolSpec{Name: "other", Kind: fake, MaxBytes: 1 << 20})
	again, err := s.owner.MakeChannel(ChannelSpec{Name: "frames", Pool: other.info.ID, Capacity: 2, ThroughService: true})
	require.NoError(t, err)
	require.NoError(t, s.owner.DestroyPool(s.pool.info.ID))
	found, err := s.owner.FindChannel(context.Background(), "frames", 0)
	require.NoError(t, err)
	assert.Equal(t, again, found)
	assert.Len(t, slow.ended(), 1)
}

func TestATombstoneThatWasDeliveredMakesRoomForWhoWaits(t *testing.T) {
	s := newStream(t, ChannelSpec{Capacity: 1})
	slow := s.listen(0, SubscribeOptions{})
	ready := s.producer.ticket()
	_, err := s.try(&ready)
	require.NoError(t, err)
	other := hire(t, s.svc)
	l := allocate(t, other.Session, s.pool, 10)
	_, waits, err := other.Send(s.info.ID, l.ID(), FrameOptions{})
	require.NoError(t, err)
	sent := make(chan error)
	go func() {
		_, err := waits.Wait(context.Background(), patience)
		sent <- err
	}()
	require.Eventually(t, func() bool {
		s.svc.mu.Lock()
		defer s.svc.mu.Unlock()
		return s.svc.channelByID[s.info.ID].room.ch != nil
	}, patience, time.Millisecond, "it sleeps")
	s.producer.die()
	require.NoError(t, slow.Credit(slow.sub, 1))
	assert.NoError(t, <-sent)
	assert.Equal(t, []int{-1}, slow.got())
}
