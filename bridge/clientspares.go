package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// spares is a list of write leases on memory of one pool. The memory of these leases has come back from channels. The next Allocate of the
// same tensor takes a spare and does not ask the service. Allocate of another tensor asks, even if the memory has the right size, so that
// the service and this client always describe a buffer by the same tensor.
type spares struct {
	client *Client
	pool   uint64

	wanted atomic.Int64 // until this time another session wants memory, in nanoseconds since 1970; 0: no session wants memory
	asking atomic.Int64 // allocations of this client that wait at the service
	// awaited counts the takers. It can be read without mu, also by callers that hold the lock of a native producer.
	awaited atomic.Int64
	used    atomic.Bool // an Allocate came since the last sweep; set to true with mu held

	ownFor time.Duration // the constant ownFor; tests use a longer time

	mu        sync.Mutex
	producers []*producing // never changed in place, because callers of members read this slice
	most      int          // how many spares `put` keeps: the capacity of the channels, and sparesMore
	list      []*sending   // the spares, in the order in which they came back
	draining  map[*producing]struct{}
	takers    []*taker  // allocations that wait for the service's answer
	tight     bool      // the service had no memory while the pool had fewer spares than `most`
	full      time.Time // until this time an allocation waits for memory from the channels before it asks the service
	timer     *time.Timer
	pause     time.Duration // until the next sweep
	closed    bool
}

// taker is an allocation that waits for the service's answer, or for memory of the same tensor that comes back from a channel.
type taker struct {
	tensor mempool.Tensor
	cancel context.CancelFunc // cancels the request to the service
	got    *sending           // the memory that came back; set with spares.mu held, while the taker is in spares.takers
}

const (
	// sparesMore is how many spares a pool may have beyond the capacity of its channels.
	sparesMore = 2
	// sparesLook is the time between two sweeps while the client allocates or publishes. If the client did neither since the previous sweep,
	// the sweep releases all spares. So an unused spare stays at least for sparesLook, and at most for twice this time.
	sparesLook = 500 * time.Millisecond
	// sparesRest is the longest time between two sweeps. While a client neither allocates nor publishes, each sweep looks for memory that has
	// come back from channels, and the time between two sweeps grows to sparesRest.
	sparesRest = time.Second
	// wantedFor is how long after a notice `wanted` the client releases all memory that comes back from channels.
	wantedFor = time.Second
	// fullFor is how long a pool counts as full after the service had no memory for an allocation.
	fullFor = 5 * time.Second
	// ownFor is how long an allocation waits for this client's own memory, before it waits at the service for memory of any client.
	ownFor = 5 * time.Millisecond
)

// sparesOf returns the spares of a pool, and makes an empty spares if the pool has none. The caller holds s.mu.
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

// spares returns the spares of a pool, or nil if the client is not a producer in the pool.
func (s *memberships) spares(pool uint64) *spares {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[pool]
}

// know adds p, a producer of this client in a channel of the pool.
func (sp *spares) know(p *producing) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.producers = append(slices.Clip(sp.producers), p)
	sp.most += p.channel.Capacity
}

// members returns the client's producers in the pool.
func (sp *spares) members() []*producing {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.producers
}

// allocate does what Allocate does, for a pool with spares. Like the service, allocate first looks for memory on which no work is running,
// then asks for new memory, and then takes memory on which work is running.
func (sp *spares) allocate(ctx context.Context, try attempt, p *Pool, t mempool.Tensor) (*Lease, error) {
	sp.look()
	l, others, busy := sp.take(t, false)
	if l == nil {
		sp.reclaim(ctx)
		l, others, busy = sp.take(t, true)
	}
	if busy && sp.mayGrow(t) {
		lease, err := sp.ask(ctx, once, p, t, false)
		if !noRoom(err) {
			sp.put(l)
			return lease, err
		}
		sp.mu.Lock()
		sp.tight = true // asking the service also disturbs other clients, so do not ask again until no allocation came for a while
		sp.mu.Unlock()
	}
	if l != nil {
		return sp.lease(ctx, l)
	}
	if !try {
		return sp.await(ctx, p, t)
	}
	lease, err := sp.ask(ctx, once, p, t, true)
	if others && errors.Is(err, ErrLimit) {
		sp.empty()
		select {
		case <-sp.client.tasksDone(): // one of the tasks may be releasing memory
		case <-ctx.Done():
		case <-sp.client.done:
		}
		return sp.ask(ctx, once, p, t, true)
	}
	return lease, err
}

// ask asks the service for memory for t. If memory of this tensor comes back from one of the client's channels before the service answers, ask
// takes this memory and cancels the request: the service may be stopped. While the service has not answered a cancelled request, ask sends
// no further request, and only waits for memory that comes back. `any` says whether ask takes memory on which work is running if this memory
// came back before ask was called.
func (sp *spares) ask(ctx context.Context, try attempt, p *Pool, t mempool.Tensor, any bool) (*Lease, error) {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &taker{tensor: t, cancel: cancel}
	sp.awaited.Add(1)
	defer sp.awaited.Add(-1)
	sp.mu.Lock()
	sp.takers = append(sp.takers, w)
	sp.mu.Unlock()
	if l, _, _ := sp.take(t, any); l != nil { // it came back after the caller's last look at the list
		sp.put(l)
	}
	late := time.AfterFunc(sp.ownFor, sp.drainAll) // the service usually answers before
	defer late.Stop()
	for asking.Err() == nil && sp.client.isOwedAnswers() {
		select {
		case <-asking.Done():
		case <-sp.client.done:
			cancel()
		case <-time.After(sp.ownFor):
		}
	}
	lease, err := p.alloc(asking, try, t)
	sp.mu.Lock()
	sp.takers = slices.DeleteFunc(sp.takers, func(other *taker) bool { return other == w })
	sp.mu.Unlock()
	switch {
	case w.got == nil:
		return lease, err
	case err == nil:
		sp.put(w.got)
		return lease, nil
	}
	return sp.lease(ctx, w.got)
}

// The method allocate calls await if it finds no spare and its caller may wait. await returns a lease on memory for t. If the pool has
// no room, await first waits until memory comes back from one of the client's own channels, because this memory is usually free before
// memory of other clients. If no such memory comes, await sends a request that waits at the service.
func (sp *spares) await(ctx context.Context, p *Pool, t mempool.Tensor) (*Lease, error) {
	from := sp.lender(t)
	var full error // the error of the service
	if from == nil || !sp.isFull() {
		lease, err := sp.ask(ctx, once, p, t, true)
		if !noRoom(err) {
			return lease, err
		}
		full = err
		sp.mu.Lock()
		sp.full = time.Now().Add(fullFor)
		sp.mu.Unlock()
	}
	if from != nil {
		if l := sp.awaitOwn(ctx, from, t); l != nil {
			return sp.lease(ctx, l)
		}
	}
	sp.release()
	defer sp.keep()
	lease, err := sp.ask(ctx, waiting, p, t, true)
	if !errors.Is(err, context.DeadlineExceeded) || noRoom(err) {
		return lease, err
	}
	if full == nil {
		full = situation.Of(ErrLimit, "pool %q had no room, and its channels have given no buffer of %s%v back", p.info.Name, t.DType, t.Shape)
	}
	return nil, fmt.Errorf("%w (%w)", full, err)
}

// noRoom reports whether an allocation failed because the pool had no room.
func noRoom(err error) bool { return errors.Is(err, ErrLimit) || errors.Is(err, ErrOutOfMemory) }

// isFull reports whether the pool counts as full.
func (sp *spares) isFull() bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return time.Now().Before(sp.full)
}

// lender returns the producer whose channel has memory that Allocate could reuse for t. It returns nil if there is no such producer. It
// also returns nil if there are several such producers, because an allocation can wait for only one channel.
func (sp *spares) lender(t mempool.Tensor) (from *producing) {
	for _, p := range sp.members() {
		if !p.native.Lends(func(owner any) bool { l, ok := owner.(*sending); return ok && l.own && l.info.Tensor.Equal(t) }) {
			continue
		}
		if from != nil {
			return nil
		}
		from = p
	}
	return from
}

// awaitOwn waits until memory for t comes back from the channel of the producer `from`, and takes the memory. It returns nil if no memory
// comes within the time sp.ownFor, or if another session or allocation wants memory of the pool.
func (sp *spares) awaitOwn(caller context.Context, from *producing, t mempool.Tensor) (l *sending) {
	began := time.Now()
	defer func() { sp.client.memoryWaits.over(began, true) }()
	ctx := &patient{Context: caller, client: sp.client, until: began.Add(sp.ownFor)}
	_ = from.native.AwaitBack(ctx, func() bool { // if AwaitBack fails, the caller asks the service, which reports the error
		_, _ = from.awaitReclaim(ctx)
		l, _, _ = sp.take(t, true)
		return l != nil || sp.isWanted()
	})
	return l
}

// release releases all spares. It also starts goroutines. Until the caller calls the method `keep`, these goroutines release all memory
// that comes back from channels. An allocation of this client calls release before it waits at the service.
func (sp *spares) release() {
	sp.asking.Add(1)
	sp.empty()
	sp.drainAll()
}

// keep undoes one call of release.
func (sp *spares) keep() {
	if sp.asking.Add(-1) > 0 {
		return
	}
	for _, p := range sp.members() {
		p.native.Wake() // wakes drain, which then checks whether memory is still wanted
	}
}

// reclaim takes the memory that has come back from all channels of the pool. It also waits until other goroutines have handled such memory.
func (sp *spares) reclaim(ctx context.Context) {
	for _, p := range sp.members() {
		_, _ = p.awaitReclaim(ctx) // if reclaiming failed, the next Publish returns the error
	}
}

// take removes a spare of the tensor t from the list: the newest spare without running work. If every spare of t has running work and
// `any` is true, take removes the oldest of these spares. `busy` means that work on the returned spare is running. `others` means that the
// list has spares of other tensors.
func (sp *spares) take(t mempool.Tensor, any bool) (l *sending, others, busy bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	at := -1
	busy = true
	for i, l := range slices.Backward(sp.list) {
		if !l.info.Tensor.Equal(t) {
			others = true
			continue
		}
		at = i
		if l.wait = sp.client.timelines.left(l.wait); len(l.wait) == 0 {
			busy = false
			break
		}
	}
	if at < 0 || busy && !any {
		return nil, others, false
	}
	l = sp.list[at]
	sp.list = slices.Delete(sp.list, at, at+1)
	return l, others, busy
}

// mayGrow reports whether an allocation of t may ask the service for new memory although it has taken a spare from the list. It may ask as
// long as the taken spare and the other spares of t do not fill the unused places of the channels, and sparesMore more. The list must also
// have room for one spare more. Spares of other tensors without running work do not count for this: `put` may release them.
func (sp *spares) mayGrow(t mempool.Tensor) bool {
	left := sparesMore - 1
	for _, p := range sp.members() {
		left += p.native.Unused()
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	room := sp.most - 1
	for _, l := range sp.list {
		if l.info.Tensor.Equal(t) {
			left--
		} else if l.wait = sp.client.timelines.left(l.wait); len(l.wait) == 0 {
			continue
		}
		room--
	}
	return !sp.tight && left > 0 && room > 0
}

// lease makes a lease of a spare.
func (sp *spares) lease(ctx context.Context, l *sending) (*Lease, error) {
	c := sp.client
	lease := &Lease{client: c, info: l.info, mem: l.mem, memory: l.memory, reused: true, own: true, loan: l}
	if len(l.wait) > 0 {
		info := *l.info
		c.timelines.pin(l.wait) // no page may be unmapped between pending and the lease's own pin
		info.Wait = c.pending(ctx, l.wait)
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

// put gives a spare to an allocation of this tensor that waits for the service's answer, or adds it to the list. If another session wants
// memory of the pool, or an allocation that cannot use this spare, put releases the spare instead. If there are too many spares, put
// releases the oldest spare.
func (sp *spares) put(l *sending) {
	sp.mu.Lock()
	switch at := slices.IndexFunc(sp.takers, func(w *taker) bool { return w.got == nil && l.info.Tensor.Equal(w.tensor) }); {
	case at >= 0 && !sp.closed && !sp.isWantedByOthers():
		sp.takers[at].got = l
		defer sp.takers[at].cancel()
		l = nil
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
		_ = sp.client.giveUp(l) // giveUp fails only if the connection is gone
	}
}

// look notes that the spares are used, and starts the timer that runs sweep.
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

// sweep forgets the producers whose channels are destroyed and have given all blocks back. It releases all spares if nothing was allocated
// since the last sweep. It runs as a task.
func (sp *spares) sweep() {
	used := sp.used.Swap(false)
	lent := 0
	for _, p := range sp.members() {
		destroyed := p.native.Destroyed()
		if used && !destroyed { // allocations reclaim the blocks
			continue
		}
		p.reclaim()
		n := p.native.Lent()
		lent += n
		if n == 0 && destroyed {
			sp.forget(p)
		}
	}
	if !used {
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
		sp.pause, sp.tight = min(2*sp.pause, sparesRest), false
		sp.timer.Reset(sp.pause)
	default:
		sp.pause, sp.tight = 0, false
	}
}

// forget removes a producer whose channel is destroyed and that has all its blocks back.
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
	_ = p.close() // close only unmaps files, which does not fail
}

// empty releases all spares.
func (sp *spares) empty() {
	sp.mu.Lock()
	list := sp.list
	sp.list = nil
	sp.mu.Unlock()
	for _, l := range list {
		_ = sp.client.giveUp(l) // giveUp fails only if the connection is gone
	}
}

// close releases all spares. After close, no new spares are kept.
func (sp *spares) close() {
	sp.mu.Lock()
	sp.closed = true
	if sp.timer != nil {
		sp.timer.Stop()
	}
	sp.mu.Unlock()
	sp.empty()
}
