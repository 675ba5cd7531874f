package bridge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// spares are write leases of a pool whose memory came back through channels. The next Allocate of as many bytes takes one, and the
// service has nothing to do.
type spares struct {
	client *Client
	pool   uint64

	wanted atomic.Int64 // another session wants memory until then, in nanoseconds since 1970; 0: none does
	asking atomic.Int64 // allocations of this client that wait at the service
	used   atomic.Bool  // since the last look; it becomes true with mu held

	ownFor time.Duration // see the constant; tests have it longer

	mu        sync.Mutex
	producers []*producing // the list is not changed: others may read it
	most      int          // how many spares there may be
	list      []*loan      // in the order in which they came back
	draining  map[*producing]struct{}
	tight     bool      // the service had no memory when there were fewer spares than there may be
	full      time.Time // until then the service is not asked for more memory before what the channels have has come back
	timer     *time.Timer
	pause     time.Duration // until the next look
	closed    bool
}

const (
	// sparesMore is how many spares a pool may have beyond what its channels keep.
	sparesMore = 2
	// sparesLook is how long it takes until spares are released, if nothing is allocated meanwhile: at least so long, and at most twice.
	sparesLook = 500 * time.Millisecond
	// sparesRest is how long it takes at most until an idle client looks again whether its channels have given something back.
	sparesRest = time.Second
	// wantedFor is for how long what comes back is released after a notice.
	wantedFor = time.Second
	// fullFor is for how long a pool that had no room is taken to have none.
	fullFor = 5 * time.Second
	// ownFor is how long an allocation waits for its own client's memory before it waits at the service, where that of others comes too.
	ownFor = 5 * time.Millisecond
)

// sparesOf are a pool's, made if need be. s.mu is held.
func (s *memberships) sparesOf(c *Client, pool uint64) *spares {
	if s.pools == nil {
		s.pools = make(map[uint64]*spares)
	}
	sp := s.pools[pool]
	if sp == nil {
		sp = &spares{client: c, pool: pool, ownFor: ownFor, most: sparesMore, draining: make(map[*producing]struct{})}
		s.pools[pool] = sp
	}
	return sp
}

// spares are a pool's, nil if the client is a producer of no channel of the pool.
func (s *memberships) spares(pool uint64) *spares {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[pool]
}

// know notes a producer of the client in the pool.
func (sp *spares) know(p *producing) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.producers = append(slices.Clip(sp.producers), p)
	sp.most += p.channel.Capacity
}

// members are the client's producers in the pool.
func (sp *spares) members() []*producing {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.producers
}

// allocate is Allocate of a pool that has spares. As the service does, it takes memory on which no work is under way, then new memory, and
// only then memory on which there is. The tensor has n bytes.
func (sp *spares) allocate(ctx context.Context, p *Pool, t mempool.Tensor, n uint64, wait time.Duration) (*Lease, error) {
	sp.look()
	l, others, busy := sp.take(n, false)
	if l == nil {
		sp.reclaim()
		l, others, busy = sp.take(n, true)
	}
	if busy {
		lease, err := p.alloc(ctx, t, 0)
		if !errors.Is(err, ErrLimit) {
			sp.put(l)
			return lease, err
		}
		sp.mu.Lock()
		sp.tight = true // the service tells other clients too that it was asked: not again before the spares were not used for a while
		sp.mu.Unlock()
	}
	if l != nil {
		return sp.lease(ctx, l, t)
	}
	if wait > 0 {
		return sp.await(ctx, p, t, n, wait)
	}
	lease, err := p.alloc(ctx, t, 0)
	if others && errors.Is(err, ErrLimit) {
		sp.empty()
		select {
		case <-sp.client.tasksDone(): // one may be releasing what was there
		case <-ctx.Done():
		case <-sp.client.done:
		}
		return p.alloc(ctx, t, 0)
	}
	return lease, err
}

// await is allocate when nothing has come back. Where the pool has no room, what comes back to the client is the quickest to be had. So it
// is waited for first. Then the client stands in line at the service.
func (sp *spares) await(ctx context.Context, p *Pool, t mempool.Tensor, n uint64, wait time.Duration) (*Lease, error) {
	until := time.Now().Add(wait)
	from := sp.lender(n)
	if from == nil || !sp.isFull() {
		lease, err := p.alloc(ctx, t, 0)
		if !errors.Is(err, ErrLimit) && !errors.Is(err, ErrOutOfMemory) {
			return lease, err
		}
		sp.mu.Lock()
		sp.full = time.Now().Add(fullFor)
		sp.mu.Unlock()
	}
	if from != nil {
		if l := sp.awaitOwn(ctx, from, n, min(wait, sp.ownFor)); l != nil {
			return sp.lease(ctx, l, t)
		}
	}
	sp.release()
	defer sp.keep()
	return p.alloc(ctx, t, max(time.Until(until), 0))
}

// isFull says whether the pool is taken to have no room.
func (sp *spares) isFull() bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return time.Now().Before(sp.full)
}

// lender is the producer whose channel has memory that Allocate can make n bytes of when it comes back. It is nil if there is none, or
// more than one: the client waits for one at a time.
func (sp *spares) lender(n uint64) (from *producing) {
	for _, p := range sp.members() {
		if !p.native.Lends(func(owner any) bool { l := owner.(*loan); return l.own && l.info.Bytes == n }) {
			continue
		}
		if from != nil {
			return nil
		}
		from = p
	}
	return from
}

// awaitOwn waits for memory of n bytes to come back from a channel, and takes it. It is nil if none has come in time, or others want it.
func (sp *spares) awaitOwn(caller context.Context, from *producing, n uint64, wait time.Duration) (l *loan) {
	ctx := &patient{Context: caller, client: sp.client, until: time.Now().Add(wait)}
	_ = from.native.AwaitBack(ctx, func() bool { // the service says what is wrong
		from.reclaim()
		l, _, _ = sp.take(n, true)
		return l != nil || sp.isWanted()
	})
	return l
}

// release releases what is kept and what comes back, until keep is called: an allocation waits at the service, which has no memory.
func (sp *spares) release() {
	sp.asking.Add(1)
	sp.empty()
	for _, p := range sp.members() {
		if p.native.Lent() > 0 {
			sp.drain(p)
		}
	}
}

// keep ends what release began.
func (sp *spares) keep() {
	if sp.asking.Add(-1) > 0 {
		return
	}
	for _, p := range sp.members() {
		p.native.Wake() // its drain looks whether memory is still wanted
	}
}

// reclaim takes what has come back.
func (sp *spares) reclaim() {
	for _, p := range sp.members() {
		p.reclaim()
	}
}

// take takes a spare of n bytes out of the list: the newest on which no work is under way, or else if any will do the oldest. busy says that
// new memory is better, if there is any: there may be more spares. others says that spares of other sizes are left.
func (sp *spares) take(n uint64, any bool) (l *loan, others, busy bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	at, work := -1, true
	for i, l := range slices.Backward(sp.list) {
		if l.info.Bytes != n {
			others = true
			continue
		}
		at = i
		if l.wait = sp.client.timelines.left(l.wait); len(l.wait) == 0 {
			work = false
			break
		}
	}
	if at < 0 || work && !any {
		return nil, others, false
	}
	busy = work && len(sp.list) < sp.most && !sp.tight
	l = sp.list[at]
	sp.list = slices.Delete(sp.list, at, at+1)
	return l, others, busy
}

// lease makes a lease of a spare.
func (sp *spares) lease(ctx context.Context, l *loan, t mempool.Tensor) (*Lease, error) {
	c := sp.client
	lease := &Lease{client: c, info: l.info, mem: l.mem, memory: l.memory, reused: true, own: true, loan: l}
	if len(l.wait) > 0 || !sameTensor(&l.info.Tensor, &t) {
		info := *l.info
		c.timelines.pin(l.wait) // none may be unmapped between the look and the lease
		info.Tensor, info.Wait = t.Clone(), c.pending(ctx, l.wait)
		c.timelines.pin(info.Wait)
		c.timelines.unpin(l.wait)
		lease.info = &info
		if len(info.Wait) > 0 {
			lease.ordering().Begin(info.Wait, false)
		}
	}
	c.mu.Lock()
	closing := c.closing
	if !closing {
		c.leases.add(lease)
	}
	c.mu.Unlock()
	if closing {
		return nil, errors.Join(errClientClosed, lease.end(true))
	}
	return lease, nil
}

// put adds a spare, or releases one: this one if memory is wanted, the oldest if there are too many.
func (sp *spares) put(l *loan) {
	sp.mu.Lock()
	switch {
	case sp.closed || sp.isWanted():
	case len(sp.list) < sp.most:
		sp.list = append(sp.list, l)
		l = nil
	default:
		sp.list = append(sp.list, l)
		l = sp.list[0]
		sp.list = slices.Delete(sp.list, 0, 1)
	}
	sp.mu.Unlock()
	if l != nil {
		_ = sp.client.giveUp(l) // it fails with the connection
	}
}

// look says that the spares are used, and sees to it that they are released once they are not.
func (sp *spares) look() {
	if sp.used.Load() {
		return
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.used.Store(true)
	switch {
	case sp.closed || sp.pause == sparesLook:
	case sp.timer == nil:
		sp.timer = time.AfterFunc(sparesLook, func() { sp.client.tasks.add(sp.sweep) })
	default:
		sp.timer.Reset(sparesLook)
	}
	sp.pause = sparesLook
}

// sweep releases all spares if nothing was allocated since the last look. It is a task.
func (sp *spares) sweep() {
	used := sp.used.Swap(false)
	lent := 0
	if !used {
		for _, p := range sp.members() {
			p.reclaim()
			if n := p.native.Lent(); n > 0 || !p.native.Destroyed() {
				lent += n
			} else {
				sp.forget(p)
			}
		}
		sp.empty()
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	switch {
	case sp.closed:
	case used || sp.used.Load():
		sp.pause = sparesLook
		sp.timer.Reset(sp.pause)
	case lent > 0:
		sp.pause = min(2*sp.pause, sparesRest)
		sp.timer.Reset(sp.pause)
	default:
		sp.pause, sp.tight = 0, false
	}
}

// forget forgets a producer whose channel is over, and which has all its blocks back.
func (sp *spares) forget(p *producing) {
	s := &sp.client.shared
	s.forget(&p.membership)
	s.mu.Lock()
	delete(s.producers, p.channel.ID)
	s.mu.Unlock()
	sp.mu.Lock()
	sp.producers = slices.DeleteFunc(slices.Clone(sp.producers), func(other *producing) bool { return other == p })
	sp.most -= p.channel.Capacity
	sp.mu.Unlock()
	p.forgotten.Store(true)
	_ = p.close() // it unmaps files; that does not fail
}

// empty releases all spares.
func (sp *spares) empty() {
	sp.mu.Lock()
	list := sp.list
	sp.list = nil
	sp.mu.Unlock()
	for _, l := range list {
		_ = sp.client.giveUp(l) // it fails with the connection
	}
}

// close releases all spares for good.
func (sp *spares) close() {
	sp.mu.Lock()
	sp.closed = true
	if sp.timer != nil {
		sp.timer.Stop()
	}
	sp.mu.Unlock()
	sp.empty()
}
