package stream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file takes back the memory of frames that a channel does not need any more: chunks, which are free then, and leases, which the client
// releases.

const (
	// tickEvery is the time between two calls of Streams.tick.
	tickEvery = 500 * time.Millisecond
	// wantedFor is how long after a notice `wanted` the client releases memory as soon as it comes back. While somebody waits for memory, the
	// service repeats the notice sooner.
	wantedFor = 500 * time.Millisecond
)

// sending is a lease that the user has published in a channel.
type sending struct {
	info   *mempool.Grant
	wait   []mempool.Fence // fences that must be reached before the memory is written
	record frameRecord
	own    bool        // the lease came with its buffer, so that nobody else can know the buffer
	back   atomic.Bool // the lease has come back
}

// addFence adds a fence to a list. For each word of a timeline, the list has only the greatest value.
func addFence(list []mempool.Fence, t mempool.Fence) []mempool.Fence {
	for i := range list {
		if have := &list[i]; have.Timeline == t.Timeline && have.Word == t.Word {
			have.Value = max(have.Value, t.Value)
			return list
		}
	}
	return append(list, t)
}

// reclaim takes the memory that has come back. It makes chunks free, and adds leases to p.back. It reports whether p.back has leases.
func (p *Producer) reclaim() bool {
	p.reclaiming.Lock()
	defer p.reclaiming.Unlock()
	return p.reclaimLocked()
}

func (p *Producer) reclaimLocked() bool {
	back, _ := p.shm.Reclaim() // the next Publish returns the error
	for i := range back {
		var wait *[]mempool.Fence
		switch owner := back[i].Owner.(type) {
		case *chunk:
			wait = &owner.wait
		case *sending:
			wait = &owner.wait
			owner.back.Store(true)
			p.back = append(p.back, owner)
		}
		for _, t := range back[i].Fences {
			*wait = addFence(*wait, mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
		}
		if s, ok := back[i].Owner.(*chunk); ok {
			s.back()
		}
	}
	return len(p.back) > 0
}

// Allocate makes l the write lease on a buffer of a pool. If a lease on a buffer with the same description has come back from a channel, l
// becomes this lease, and the service need not know. Otherwise Allocate asks the service, after it has released all leases that have come
// back, because the service may need their memory.
func (st *Streams) Allocate(ctx context.Context, l *session.Lease, try session.Attempt, pool *session.Pool, t mempool.Tensor) error {
	producers := st.producersIn(pool.Info.ID)
	for _, p := range producers {
		if ctx.Err() == nil && p.renew(l, t) {
			return nil
		}
	}
	for _, p := range producers {
		p.collect(ctx)
	}
	return st.session.Blocks.Allocate(ctx, l, try, pool, t)
}

// renew makes l a lease that has come back, on a buffer with the description t, if there is one. If another session waits for memory of the
// pool, renew does nothing: the caller then releases the lease, and the service gives the memory to that session.
func (p *Producer) renew(l *session.Lease, t mempool.Tensor) bool {
	if p.isWanted() || p.shm.Destroyed() || p.session.Enter() != nil {
		return false
	}
	defer p.session.Leave()
	p.reclaiming.Lock()
	defer p.reclaiming.Unlock()
	p.reclaimLocked()
	i := slices.IndexFunc(p.back, func(s *sending) bool { return s.own && s.info.Tensor.Equal(t) })
	if i < 0 {
		return false
	}
	s := p.back[i]
	s.wait = p.session.Timelines.Left(s.wait)
	if len(s.wait) > 0 || !p.session.Blocks.Renew(l, s.info) {
		return false
	}
	p.back = slices.Delete(p.back, i, i+1)
	return true
}

// collect reclaims memory and releases the leases that have come back. It may wait until the service reads. While the client is being
// closed, collect does nothing: Close itself reclaims what is left.
func (p *Producer) collect(ctx context.Context) {
	if p.session.Enter() != nil {
		return
	}
	defer p.session.Leave()
	p.giveUpLeases(ctx)
}

// giveUpLeases releases the leases that have come back. If another goroutine is just doing so, giveUpLeases waits for it until ctx ends: the
// caller's next request must come after these releases.
func (p *Producer) giveUpLeases(ctx context.Context) {
	select {
	case p.returning <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-p.returning }()
	p.reclaim()
	p.reclaiming.Lock()
	leases := p.back
	p.back = nil
	p.reclaiming.Unlock()
	for _, l := range leases {
		_ = p.streams.giveUp(l.info, l.wait) // giveUp fails only if the connection is gone
	}
}

// Collect releases the leases that have come back from channels of a pool.
func (st *Streams) Collect(ctx context.Context, pool uint64) {
	for _, p := range st.producersIn(pool) {
		p.collect(ctx)
	}
}

// producersIn returns the client's producers in channels of a pool; 0 stands for all pools.
func (st *Streams) producersIn(pool uint64) (list []*Producer) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, p := range st.producers {
		select {
		case <-p.joined:
			if p.err == nil && (pool == 0 || p.channel.Pool == pool) {
				list = append(list, p)
			}
		default:
		}
	}
	return list
}

// publishersOf returns the publishers of a producer; nil stands for all producers.
func (st *Streams) publishersOf(from *Producer) (list []*Publisher) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for p := range st.publishers {
		if from == nil || p.from == from {
			list = append(list, p)
		}
	}
	return list
}

// Wanted handles a notice that somebody waits for memory of a pool. It runs as a task.
func (st *Streams) Wanted(pool uint64) {
	for _, p := range st.producersIn(pool) {
		p.wanted.Store(time.Now().Add(wantedFor).UnixNano())
		p.giveBack()
		p.beginDrain()
	}
}

// GiveBack releases the memory that has come back from channels of a pool, and the arenas there of which every chunk is free.
func (st *Streams) GiveBack(pool uint64) {
	for _, p := range st.producersIn(pool) {
		p.giveBack()
	}
}

// giveBack releases the memory that has come back, and the arenas of which every chunk is free.
func (p *Producer) giveBack() {
	p.collect(p.session.Working())
	for _, of := range p.streams.publishersOf(p) {
		of.giveBack()
	}
}

// beginDrain starts the goroutine of drain if memory is wanted and the channel has some, unless the goroutine runs.
func (p *Producer) beginDrain() {
	if p.drainable() && p.draining.CompareAndSwap(false, true) && p.session.Go(p.drain) != nil {
		p.draining.Store(false)
	}
}

// drainable reports whether memory is wanted and the channel has memory that will come back.
func (p *Producer) drainable() bool { return p.isWanted() && p.shm.Outstanding() > 0 }

// isWanted reports whether memory is wanted: the last notice that somebody waits for memory of the pool came less than wantedFor ago.
func (p *Producer) isWanted() bool {
	until := p.wanted.Load()
	if until > 0 && time.Now().UnixNano() >= until {
		p.wanted.CompareAndSwap(until, 0)
		return false
	}
	return until > 0
}

// drain calls giveBack whenever memory comes back, as long as memory is wanted and the channel has some.
func (p *Producer) drain() {
	for p.drainable() {
		ctx, cancel := context.WithDeadline(p.session.Working(), time.Unix(0, p.wanted.Load()))
		err := p.shm.AwaitBack(ctx, func() bool {
			p.giveBack()
			return p.shm.Outstanding() == 0
		})
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) { // no memory will come back, or closing takes it
			p.draining.Store(false)
			return
		}
	}
	p.endDrain()
}

// endDrain ends the goroutine of drain. A notice or a frame that came after the goroutine last looked, and before it has ended, could not
// start the goroutine, so endDrain does.
func (p *Producer) endDrain() {
	p.draining.Store(false)
	p.beginDrain()
}

// giveUp releases a lease whose memory came back from a channel. Before the release, the fences of the channel's consumers must be reached,
// because the service does not know these fences. If a fence is not reached yet, giveUp starts a goroutine that waits for the fence and
// then releases the lease.
func (st *Streams) giveUp(info *mempool.Grant, fences []mempool.Fence) error {
	s, linked := st.session, st.session.Linked()
	if linked.Err() != nil { // the lease has ended with the session
		return context.Cause(linked)
	}
	wait := s.Timelines.Pending(linked, fences)
	if len(wait) == 0 {
		return s.Blocks.ReleaseGrant(info, false)
	}
	st.giving.Add(1)
	s.Background(func() {
		defer st.giving.Done()
		for _, t := range wait {
			switch page, err := s.Timelines.Page(linked, t.Timeline); {
			case err == nil:
				_ = page.Await(linked, t) // if the timeline's process died, or the service forgot the timeline, no work is left
			case !session.Forgotten(err):
				return // nobody knows whether the fence is reached, so the lease ends only with the session
			}
		}
		if linked.Err() == nil {
			_ = s.Blocks.ReleaseGrant(info, false) // ReleaseGrant fails only if the connection is gone
		}
	})
	return nil
}

func (st *Streams) addPublisher(p *Publisher) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.publishers[p] = struct{}{}
}

// ClosePublishers closes all publishers and returns their loans.
func (st *Streams) ClosePublishers() (loans []*session.Lease) {
	for _, p := range st.publishersOf(nil) {
		p.mu.Lock()
		p.closed.Store(true)
		p.mu.Unlock()
		loans = append(loans, p.Loans()...)
	}
	return loans
}

// arenas returns the arenas of all publishers of a producer.
func (p *Producer) arenas() (arenas []*arena) {
	for _, of := range p.streams.publishersOf(p) {
		of.mu.Lock()
		arenas = append(arenas, of.arenas...)
		of.mu.Unlock()
	}
	return arenas
}

// startTicks makes the client call tick at intervals of tickEvery, as long as channels have memory of the client or publishers have arenas.
func (st *Streams) startTicks() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.ticking {
		st.ticking = true
		time.AfterFunc(tickEvery, func() { st.session.AddTask(st.tick) })
	}
}

// tick takes the memory that has come back, gives the memory of idle publishers back, and forgets the producers whose channels are destroyed
// and have no memory of the client any more. It runs as a task.
func (st *Streams) tick() {
	st.mu.Lock()
	st.ticking = false
	st.mu.Unlock()
	if st.session.Over() != nil {
		return
	}
	again := false
	for _, p := range st.publishersOf(nil) {
		if !p.tick() && p.closed.Load() {
			st.mu.Lock()
			delete(st.publishers, p)
			st.mu.Unlock()
		}
	}
	for _, p := range st.producersIn(0) {
		destroyed := p.shm.Destroyed()
		if destroyed {
			p.giveBack()
		} else {
			p.collect(p.session.Working())
		}
		switch used := p.shm.Outstanding()+len(p.arenas()) > 0; {
		case used:
			again = true
		case destroyed:
			again = !st.forgetProducer(p) || again
		}
	}
	if again {
		st.startTicks()
	}
}

// forgetProducer removes a producer whose channel is destroyed, and its publishers. It returns false if a publisher has got an arena meanwhile.
func (st *Streams) forgetProducer(p *Producer) bool {
	p.forgotten.Store(true) // from now on, no publisher keeps an arena that comes
	if len(p.arenas()) > 0 {
		p.forgotten.Store(false)
		return false
	}
	st.forget(&p.member)
	st.mu.Lock()
	maps.DeleteFunc(st.publishers, func(of *Publisher, _ struct{}) bool { return of.from == p })
	delete(st.producers, p.channel.ID)
	st.mu.Unlock()
	_ = p.close() // close only unmaps files, which does not fail
	return true
}

// release releases the arenas and the leases of a producer that has left its channel. The service has ended the leases of the memory that
// the channel still needs, and keeps this memory as long as the channel needs it.
func (p *Producer) release() {
	own := func(wait []mempool.Fence) []mempool.Fence {
		return slices.DeleteFunc(wait, func(t mempool.Fence) bool { return t.Timeline != p.timeline })
	}
	for _, a := range p.arenas() {
		_ = p.session.Blocks.ReleaseGrant(a.info, false, own(a.work())...) // ReleaseGrant fails only if the connection is gone
	}
	for _, owner := range p.shm.Forget() {
		if l, ok := owner.(*sending); ok {
			_ = p.session.Blocks.ReleaseGrant(l.info, false, own(l.wait)...)
		}
	}
}
