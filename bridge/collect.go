package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// This file takes back the memory of frames that a channel does not need any more: slots, which are free then, and leases, which the client
// releases.

const (
	// tickEvery is the time between two calls of Client.tick.
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

// reclaim takes the memory that has come back. It makes slots free, and returns leases, which the caller releases.
func (p *producing) reclaim() (leases []*sending) {
	p.reclaiming.Lock()
	defer p.reclaiming.Unlock()
	back, err := p.native.Reclaim()
	if err != nil { // the next Publish returns the error
		return nil
	}
	for i := range back {
		var wait *[]mempool.Fence
		switch owner := back[i].Owner.(type) {
		case *slot:
			wait = &owner.wait
		case *sending:
			wait = &owner.wait
			leases = append(leases, owner)
		}
		for _, t := range back[i].Fences {
			*wait = addFence(*wait, mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
		}
		if s, ok := back[i].Owner.(*slot); ok {
			s.back()
		}
	}
	return leases
}

// collect reclaims memory and releases the leases that have come back. It may wait until the service reads. While the client is being
// closed, collect does nothing: Close itself reclaims what is left.
func (p *producing) collect() {
	if p.client.session.Enter() != nil {
		return
	}
	defer p.client.session.Leave()
	p.giveUpLeases()
}

func (p *producing) giveUpLeases() {
	for _, l := range p.reclaim() {
		_ = p.client.giveUp(l.info, l.wait) // giveUp fails only if the connection is gone
	}
}

// collectLeases releases the leases that have come back from channels of a pool.
func (c *Client) collectLeases(pool uint64) {
	for _, p := range c.shared.producersIn(pool) {
		if p.native.Lent() > 0 {
			p.collect()
		}
	}
}

// producersIn returns the client's producers in channels of a pool; 0 stands for all pools.
func (s *memberships) producersIn(pool uint64) (list []*producing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.producers {
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
func (s *memberships) publishersOf(from *producing) (list []*Publisher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.publishers {
		if from == nil || p.from == from {
			list = append(list, p)
		}
	}
	return list
}

// wanted handles a notice that somebody waits for memory of a pool. It runs as a task.
func (c *Client) wanted(pool uint64) {
	for _, p := range c.shared.producersIn(pool) {
		p.wanted.Store(time.Now().Add(wantedFor).UnixNano())
		p.giveBack()
		if p.draining.CompareAndSwap(false, true) && c.session.Go(p.drain) != nil {
			p.draining.Store(false)
		}
	}
}

// giveBack releases the memory that has come back, and the arenas of which every slot is free.
func (p *producing) giveBack() {
	p.collect()
	for _, of := range p.client.shared.publishersOf(p) {
		of.giveBack()
	}
}

// drain calls giveBack whenever memory comes back, as long as memory is wanted.
func (p *producing) drain() {
	defer p.draining.Store(false)
	for until := p.wanted.Load(); time.Now().UnixNano() < until; until = p.wanted.Load() {
		ctx, cancel := context.WithDeadline(p.client.session.Working(), time.Unix(0, until))
		err := p.native.AwaitBack(ctx, func() bool {
			p.giveBack()
			return p.native.Lent() == 0
		})
		cancel()
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			return
		}
	}
}

// giveUp releases a lease whose memory came back from a channel. Before the release, the fences of the channel's consumers must be reached,
// because the service does not know these fences. If a fence is not reached yet, giveUp starts a goroutine that waits for the fence and
// then releases the lease.
func (c *Client) giveUp(info *mempool.Grant, fences []mempool.Fence) error {
	if c.session.Linked().Err() != nil { // the lease has ended with the session
		return context.Cause(c.session.Linked())
	}
	wait := c.pending(c.session.Linked(), fences)
	if len(wait) == 0 {
		return c.releaseMemory(info, nil)
	}
	c.shared.giving.Add(1)
	c.background.Go(func() {
		defer c.shared.giving.Done()
		for _, t := range wait {
			switch page, err := c.session.Timelines.Page(c.session.Linked(), t.Timeline); {
			case err == nil:
				_ = page.Await(c.session.Linked(), t) // if the timeline's process died, or the service forgot the timeline, no work is left
			case !forgotten(err):
				return // nobody knows whether the fence is reached, so the lease ends only with the session
			}
		}
		if c.session.Linked().Err() == nil {
			_ = c.releaseMemory(info, nil) // releaseMemory fails only if the connection is gone
		}
	})
	return nil
}

// forgotten reports whether an error means that the service has forgotten a timeline. The service forgets the timeline of a member only
// after all work of the member has ended.
func forgotten(err error) bool { return errors.Is(err, ErrStale) }

// releaseMemory releases the lease of a frame or of an arena. `done` has the client's own fences; releaseMemory passes them to the service.
func (c *Client) releaseMemory(info *mempool.Grant, done []mempool.Fence) error {
	err := c.sendRelease(info, false, false, done)
	return errors.Join(err, c.ended(info.Block, done...))
}

// pending leaves out the fences that are certainly reached, and returns the remaining fences.
func (c *Client) pending(ctx context.Context, fences []mempool.Fence) (left []mempool.Fence) {
	for _, t := range fences {
		page, err := c.session.Timelines.Page(ctx, t.Timeline)
		if forgotten(err) {
			continue
		}
		if err == nil {
			if over, _ := page.Over(t); over {
				continue
			}
		}
		left = append(left, t)
	}
	return left
}

func (s *memberships) addPublisher(p *Publisher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.publishers == nil {
		s.publishers = make(map[*Publisher]struct{})
	}
	s.publishers[p] = struct{}{}
}

// loans closes all publishers and returns their loans.
func (s *memberships) loans() (loans []*Lease) {
	for _, p := range s.publishersOf(nil) {
		p.mu.Lock()
		p.closed.Store(true)
		p.mu.Unlock()
		loans = append(loans, p.loans()...)
	}
	return loans
}

// arenas returns the arenas of all publishers of a producer.
func (p *producing) arenas() (arenas []*arena) {
	for _, of := range p.client.shared.publishersOf(p) {
		of.mu.Lock()
		arenas = append(arenas, of.arenas...)
		of.mu.Unlock()
	}
	return arenas
}

// startTicks makes the client call tick at intervals of tickEvery, as long as channels have memory of the client or publishers have arenas.
func (s *memberships) startTicks(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ticking {
		s.ticking = true
		time.AfterFunc(tickEvery, func() { c.session.AddTask(c.tick) })
	}
}

// tick takes the memory that has come back, gives the memory of idle publishers back, and forgets the producers whose channels are destroyed
// and have no memory of the client any more. It runs as a task.
func (c *Client) tick() {
	s := &c.shared
	s.mu.Lock()
	s.ticking = false
	s.mu.Unlock()
	if c.session.Working().Err() != nil {
		return
	}
	again := false
	for _, p := range s.publishersOf(nil) {
		if !p.tick() && p.closed.Load() {
			s.mu.Lock()
			delete(s.publishers, p)
			s.mu.Unlock()
		}
	}
	for _, p := range s.producersIn(0) {
		destroyed := p.native.Destroyed()
		if destroyed {
			p.giveBack()
		} else {
			p.collect()
		}
		switch used := p.native.Lent()+len(p.arenas()) > 0; {
		case used:
			again = true
		case destroyed:
			s.forgetProducer(p)
		}
	}
	if again {
		s.startTicks(c)
	}
}

// forgetProducer removes a producer whose channel is destroyed.
func (s *memberships) forgetProducer(p *producing) {
	p.forgotten.Store(true)
	s.forget(&p.membership)
	s.mu.Lock()
	delete(s.producers, p.channel.ID)
	s.mu.Unlock()
	_ = p.close() // close only unmaps files, which does not fail
}

// release releases the arenas and the leases of a producer that has left its channel. The service has ended the leases of the memory that
// the channel still needs, and keeps this memory as long as the channel needs it.
func (p *producing) release() {
	own := func(wait []mempool.Fence) []mempool.Fence {
		return slices.DeleteFunc(wait, func(t mempool.Fence) bool { return t.Timeline != p.timeline })
	}
	for _, a := range p.arenas() {
		_ = p.client.releaseMemory(a.info, own(a.work())) // releaseMemory fails only if the connection is gone
	}
	for _, owner := range p.native.Forget() {
		if l, ok := owner.(*sending); ok {
			_ = p.client.releaseMemory(l.info, own(l.wait))
		}
	}
}
