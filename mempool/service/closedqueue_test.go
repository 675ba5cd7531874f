package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// closedQueue is a queue with frames that was closed, and its producer.
func closedQueue(t *testing.T, frames int) (*channelRig, *source) {
	t.Helper()
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 8, Mode: mempool.WorkQueue}, 16)
	p := r.produce(hire(t, r.svc))
	for range frames {
		p.send()
	}
	return r, p
}

// worker joins the channel that a session finds by name.
func (r *channelRig) worker() *sink {
	r.Helper()
	w := hire(r, r.svc)
	m, err := w.JoinChannel(r.Context(), "frames", MemberSpec{Role: Consumer}, 0)
	require.NoError(r, err)
	return r.seated(w, m)
}

// found returns the id of the channel that a consumer joins by name.
func (r *channelRig) found() (uint64, error) {
	s := hire(r, r.svc)
	m, err := s.JoinChannel(r.Context(), "frames", MemberSpec{Role: Consumer}, 0)
	if err == nil {
		err = s.Channel(m.Channel.ID).Member(m.ID).Leave()
	}
	return m.Channel.ID, err
}

// drain takes and acknowledges all frames of the queue, and returns how many these were.
func (s *sink) drain() (n int) {
	s.rig.Helper()
	f, err := s.try()
	for ; err == nil && f != nil; f, err = s.try() {
		s.done(f, mempool.Fence{})
		n++
	}
	require.ErrorIs(s.rig, err, shmchannel.ErrEnded)
	return n
}

func TestAClosedQueueWaitsForTheWorkersOfItsFrames(t *testing.T) {
	for name, first := range map[string]func(r *channelRig, shut func()){
		"the first worker comes late": func(r *channelRig, shut func()) { shut() },
		"the last worker dies": func(r *channelRig, shut func()) {
			c := r.worker()
			shut()
			c.next()
			gone, _ := c.end()
			gone()
		},
		"the last worker leaves": func(r *channelRig, shut func()) {
			c := r.worker()
			c.done(c.next(), mempool.Fence{})
			c.quit()
			shut()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := closedQueue(t, 8)
			first(r, func() { require.NoError(t, r.owner.Channel(r.info.ID).Close()) })
			gone, _ := p.end()
			gone()
			left := 8
			if name == "the last worker leaves" {
				left = 7
			}
			_, err := hire(t, r.svc).Channel(r.info.ID).Join(MemberSpec{Role: Producer})
			require.ErrorIs(t, err, mempool.ErrClosed)
			c := r.worker()
			assert.Equal(t, left, c.drain())
			_, err = hire(t, r.svc).Channel(r.info.ID).Join(MemberSpec{Role: Consumer})
			require.ErrorIs(t, err, mempool.ErrClosed, "every frame is acknowledged")
			c.quit()
			assert.True(t, r.nothingLeft())
			r.awaitStands(0, 0)
			assert.Empty(t, happened(t, r.svc, mempool.FrameLost))
		})
	}
}

func TestTheOldestClosedQueueWithWaitingFramesIsFoundFirst(t *testing.T) {
	r, _ := closedQueue(t, 2)
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	next, err := r.owner.MakeChannel(r.info.ChannelSpec)
	require.NoError(t, err, "the name is free")
	find := func() uint64 {
		id, err := r.found()
		require.NoError(t, err)
		return id
	}
	c := r.worker()
	f := c.next()
	require.Equal(t, r.info.ID, find())
	found, err := r.owner.FindChannel(t.Context(), "frames", 0)
	require.NoError(t, err)
	require.Equal(t, next.ID, found.ID, "a producer finds the open channel")
	g := c.next()
	require.Equal(t, next.ID, find(), "no frame of the closed queue waits")
	require.NoError(t, r.owner.Channel(next.ID).Close())
	require.Equal(t, r.info.ID, find(), "its frames need another worker if this worker ends")
	_, err = r.owner.FindChannel(t.Context(), "frames", 0)
	require.ErrorIs(t, err, mempool.ErrNotFound, "a producer waits for an open channel")
	require.NoError(t, c.Requeue(f))
	require.NoError(t, c.Release(f, shmchannel.Fence{}))
	c.done(g, mempool.Fence{})
	assert.Equal(t, 1, r.worker().drain())
	_, err = r.found()
	require.ErrorIs(t, err, mempool.ErrNotFound)
}

func TestTheFramesOfAClosedQueueAreLostWhenNoWorkerComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := closedQueue(t, 5)
		limits := Limits{ClosedQueueSeconds: 60}
		r.svc.SetLimits(limits)
		require.NoError(t, r.owner.Channel(r.info.ID).Close())
		time.Sleep(55 * time.Second)
		c := r.worker()
		c.done(c.next(), mempool.Fence{})
		time.Sleep(time.Hour) // a queue that has a worker waits for it
		c.quit()
		time.Sleep(55 * time.Second) // the limit begins again
		synctest.Wait()
		require.False(t, r.nothingLeft())
		require.Empty(t, happened(t, r.svc, mempool.FrameLost))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.True(t, r.nothingLeft())
		e := one(t, r.svc, mempool.FrameLost)
		assert.Equal(t, 4, e.Count)
		assert.Equal(t, "frames", e.Channel)
		assert.Contains(t, e.Text, "4 frames")
		assert.EqualValues(t, 4, r.svc.Counts().Events[mempool.FrameLost])
		assert.Len(t, p.back(), 5, "the producer has all blocks back")
	})
}

func TestTheFramesOfAClosedQueueAreLostWhenTheyAreDiscarded(t *testing.T) {
	r, p := closedQueue(t, 5)
	of := r.owner.Channel(r.info.ID)
	require.ErrorIs(t, of.Discard(), mempool.ErrInvalid, "it is open")
	c := r.worker()
	f := c.next()
	require.NoError(t, of.Close())
	require.NoError(t, of.Discard())
	require.NoError(t, of.Discard(), "again")
	e := one(t, r.svc, mempool.FrameLost)
	assert.Equal(t, 5, e.Count)
	assert.Contains(t, e.Text, "discarded them")
	assert.Len(t, p.back(), 4, "the worker still uses one block")
	c.done(f, mempool.Fence{})
	assert.Len(t, p.back(), 1)
	c.quit()
	assert.True(t, r.nothingLeft())
}

func TestOnlyWhoMadeAQueueDiscardsItsFrames(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 16 * 4096, Access: mempool.Access{UIDs: []uint32{mempool.Self().UID, 4711}}})
	r := &channelRig{TB: t, svc: svc, owner: owner, pool: p}
	var err error
	r.info, err = owner.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: p.rec.Info.ID, Mode: mempool.WorkQueue, Capacity: 4})
	require.NoError(t, err)
	r.produce(hire(t, svc)).send()
	other, err := svc.OpenSession(mempool.Peer{UID: 4711}, "", nil)
	require.NoError(t, err)
	require.ErrorIs(t, other.Channel(r.info.ID).Discard(), mempool.ErrDenied)
	require.NoError(t, owner.Channel(r.info.ID).Close())
	require.ErrorIs(t, other.Channel(r.info.ID).Discard(), mempool.ErrDenied)
	assert.Equal(t, 1, r.worker().drain())
}

func TestAClosedBroadcastIsNotDiscarded(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4}, 4)
	c, p := r.consume(hire(t, r.svc), MemberSpec{}), r.produce(hire(t, r.svc))
	p.send()
	of := r.owner.Channel(r.info.ID)
	for range 2 { // open, then closed
		err := of.Discard()
		require.ErrorIs(t, err, mempool.ErrInvalid)
		require.ErrorContains(t, err, "broadcast")
		_ = of.Close()
	}
	assert.Equal(t, 1, c.drain(), "its reader gets the frames")
}

func TestAClosedQueueWithoutAWorkerEndsAtOnceWhenItIsDiscarded(t *testing.T) {
	r, p := closedQueue(t, 3)
	of := r.owner.Channel(r.info.ID)
	require.NoError(t, of.Close())
	require.NoError(t, of.Discard())
	assert.True(t, r.nothingLeft())
	assert.Len(t, p.back(), 3)
	require.ErrorIs(t, of.Discard(), mempool.ErrClosed, "it is gone")
	assert.Equal(t, 3, one(t, r.svc, mempool.FrameLost).Count)
}

func TestFramesOfAQueueThatEndWithTheirPoolAreCountedAsLost(t *testing.T) {
	r, _ := closedQueue(t, 3)
	require.NoError(t, r.owner.DestroyPool(r.pool.rec.Info.ID))
	assert.Equal(t, 3, one(t, r.svc, mempool.FrameLost).Count)
	assert.True(t, r.nothingLeft())
}
