package stream

import (
	"context"
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Hand is a frame that the user has in hand. It has the memory of the frame's lease.
type Hand struct {
	by *Consumer

	mu      sync.Mutex
	hand    shmchannel.Hand
	decided bool // the frame was acknowledged, passed or requeued
}

// Channel returns the channel of the frame.
func (t *Hand) Channel() *mempool.ChannelIdentity { return &t.by.channel }

// Number returns the frame's number in the channel.
func (t *Hand) Number() uint64 { return t.hand.Number }

// Nameless returns an error: the memory of a frame cannot be published.
func (*Hand) Nameless() error {
	return typed.Errorf(mempool.ErrInvalid, "the lease of a frame is a read lease; ask for a write lease")
}

// Settle requeues the frame if `again` is true, and acknowledges the frame otherwise.
func (t *Hand) Settle(again bool) error {
	if err := t.by.session.Over(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decided { // the lease was released
		return shmchannel.ErrReleased
	}
	return t.settleLocked(again)
}

// settleLocked requeues a frame of a queue if `again` is true, and acknowledges it otherwise. In a broadcast, settleLocked instead gives up the
// frame's place in the channel, so that the frame does not block producers any more. If the frame is settled already, settleLocked does
// nothing.
func (t *Hand) settleLocked(again bool) error {
	if t.decided {
		return nil
	}
	t.decided = true
	shm := t.by.shm
	switch {
	case t.by.channel.Mode != mempool.WorkQueue:
		return shm.Pass(&t.hand)
	case again:
		return shm.Requeue(&t.hand)
	}
	return shm.Acknowledge(&t.hand)
}

// requeueAll requeues the unsettled frames of queues after the session has ended. The client must do this itself: the service requeues
// the frames of a consumer only after the consumer's process has ended, and this process may still run.
func (st *Streams) requeueAll() {
	for _, l := range st.session.Blocks.Leases() {
		if t, ok := l.Holder().(*Hand); ok && t.by.channel.Mode == mempool.WorkQueue {
			t.mu.Lock()
			_ = t.settleLocked(true) // settleLocked fails if the user has just released the frame
			t.mu.Unlock()
		}
	}
}

// End releases the frame. The consumer's work on the frame is done when the fences in `done` are reached. If a frame of a queue is not
// settled yet, End requeues the frame if `incomplete` is true, and acknowledges it otherwise. If the frame's slot still has the fence of
// another frame, End first waits for the work, but not longer than [session.WorkLimit]: then a goroutine waits on, and releases the frame.
func (t *Hand) End(_ *session.Lease, incomplete bool, done []mempool.Fence) error {
	s := t.by
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if s.channel.Mode == mempool.WorkQueue {
		err = t.settleLocked(incomplete)
	}
	var fence shmchannel.Fence
	if len(done) > 0 {
		fence = shmchannel.Fence{Timeline: s.timeline, Word: done[0].Word, Value: done[0].Value}
	}
	released := s.shm.Release(&t.hand, fence)
	if errors.Is(released, shmchannel.ErrUnfinished) {
		limited, cancel := context.WithTimeout(s.session.Linked(), session.WorkLimit)
		released = finish(limited, s.session, done[0])
		cancel()
		if errors.Is(released, context.DeadlineExceeded) {
			s.session.Background(func() { t.releaseAfter(done[0]) })
			return err
		}
		if released == nil {
			released = s.shm.Release(&t.hand, shmchannel.Fence{})
		}
	}
	s.dropUser()
	if errors.Is(released, shmchannel.ErrReleased) {
		released = typed.Errorf(mempool.ErrReleased, "the subscription of channel %q has given the frame up", s.channel.Name)
	}
	return errors.Join(err, released)
}

// releaseAfter releases the frame when the client's own work on it is done. If the connection is lost before, the frame stays in hand until
// the process ends.
func (t *Hand) releaseAfter(work mempool.Fence) {
	s := t.by
	err := finish(s.session.Linked(), s.session, work)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		_ = s.shm.Release(&t.hand, shmchannel.Fence{}) // fails only if the service has removed the consumer
	}
	s.dropUser()
}

// finish waits for a fence of the client's own work.
func finish(ctx context.Context, s *session.Session, t mempool.Fence) error {
	page, err := s.Timelines.Page(ctx, t.Timeline)
	if err != nil {
		return err
	}
	return page.Await(ctx, t)
}
