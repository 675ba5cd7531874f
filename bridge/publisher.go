package bridge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Publisher publishes frames of one description in a channel, from memory that it keeps. [Publisher.Loan] lends the program memory for the
// next frame, and [Publisher.Publish] publishes this memory. So a stream asks the service for nothing. Several goroutines may call the
// methods, and have several loans at a time.
//
// The memory of a Publisher is an arena: one lease of one buffer, which is divided into slots of equal size. The first loan asks the service
// for an arena of a few slots more than the channel keeps frames. If the pool has no room, the arena has fewer slots. If all slots are in
// use, because the program has many loans or because subscribers hold frames that the channel does not keep any more, the Publisher asks for
// a further arena. A Publisher that has not been used for a second gives the arenas back of which every slot is free. It does so at once if
// other programs, or other parts of this program, wait for memory of the pool. The next loan asks for an arena again.
//
// A subscriber maps the whole arena, so all members of a channel can read all slots of the arena. An arena has frames of one channel only.
type Publisher struct {
	channel *Channel
	from    *producing
	pool    *Pool
	tensor  mempool.Tensor
	bytes   uint64        // of a frame
	stride  uint64        // of a slot
	making  chan struct{} // has a value while a goroutine asks the service for an arena
	used    atomic.Bool   // Loan was called since the last tick
	closed  atomic.Bool

	mu      sync.Mutex
	arenas  []*arena
	waiting int       // number of calls of Loan that wait
	rested  bool      // the Publisher was not used between the last two ticks
	refused time.Time // when the service last refused a further arena
	refusal error
}

const (
	// slotAlign is the number of bytes of which the size of a slot is a multiple.
	slotAlign = 512
	// An arena has arenaMore slots more than the channel keeps frames. For small frames, of at most smallFrame bytes, it has more: smallMore
	// slots, or streamMore slots if streams write the memory. Then the Publisher looks less often for slots that have come back, and the work
	// of readers on them has more often ended.
	arenaMore, smallMore, streamMore = 2, 4, 16
	smallFrame                       = 256 << 10
	// growRest is how long a Publisher asks for no further arena after the service has refused one.
	growRest = 200 * time.Millisecond
)

// Publisher returns a Publisher for frames with the description t. It joins the channel if the client is not a producer of it yet.
//
// Errors: [ErrInvalid], [ErrDenied], [ErrClosed], [ErrLimit] if the channel has too many producers; the context's error.
func (ch *Channel) Publisher(ctx context.Context, t Tensor) (*Publisher, error) {
	bytes, err := t.Extent()
	if err != nil {
		return nil, err
	}
	pool, err := ch.client.pool(ctx, ch.info.Pool)
	if err != nil {
		return nil, err
	}
	from, err := ch.producer(ctx)
	if err != nil {
		return nil, err
	}
	stride := max((bytes+slotAlign-1)&^(slotAlign-1), slotAlign)
	if stride > math.MaxInt64 {
		stride = bytes // no pool has room for one slot
	}
	p := &Publisher{channel: ch, from: from, pool: pool, tensor: t.Clone(), bytes: bytes, stride: stride, making: make(chan struct{}, 1)}
	ch.client.shared.addPublisher(p)
	return p, nil
}

// Loan lends memory for a frame: a write lease on one slot. The caller writes the content, and then passes the lease to [Publisher.Publish],
// or releases it. Loan prefers memory on which no work of readers is running. If there is no such memory, the lease waits for this work
// before it uses the memory, as every lease does.
//
// If no slot is free, Loan waits until one comes back.
//
// Errors: [ErrLimit] or [ErrOutOfMemory] at the deadline: the error says how many slots there are and what has them; [ErrClosed].
func (p *Publisher) Loan(ctx context.Context) (*Lease, error) { return p.loan(ctx, session.Waiting) }

// TryLoan is like [Publisher.Loan], but does not wait until a slot comes back. It may ask the service for memory.
//
// Errors: those of Loan, at once.
func (p *Publisher) TryLoan(ctx context.Context) (*Lease, error) { return p.loan(ctx, session.Once) }

// Publish publishes a loan as a frame and returns the frame's number. The loan has ended then. In all else, Publish is like
// [Channel.Publish]: in particular, if it fails, the loan stays valid, unless ctx was cancelled.
//
// Errors: those of [Channel.Publish]; [ErrInvalid] if the lease is not a loan of this Publisher.
func (p *Publisher) Publish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return p.send(ctx, session.Waiting, l, o)
}

// TryPublish is like [Publisher.Publish], but does not wait for room in the channel.
//
// Errors: those of Publish; [ErrLimit] with every policy.
func (p *Publisher) TryPublish(ctx context.Context, l *Lease, o FrameOptions) (uint64, error) {
	return p.send(ctx, session.Once, l, o)
}

// Close ends the Publisher. It gives an arena back as soon as all slots of the arena are free. The program can still use and release its
// loans. A second call does nothing.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed.Store(true)
	p.mu.Unlock()
	p.from.giveBack()
	p.wake()
}

// usable returns an error if the Publisher or its client has ended.
func (p *Publisher) usable() error {
	switch c := p.channel.client; {
	case c.session.Working().Err() != nil:
		return context.Cause(c.session.Working())
	case p.closed.Load():
		return situation.Of(ErrClosed, "this publisher of channel %q was closed", p.channel.info.Name)
	}
	return nil
}

func (p *Publisher) loan(ctx context.Context, try session.Attempt) (l *Lease, err error) {
	c := p.channel.client
	if c.tracer != nil {
		var end func(*Lease, error)
		ctx, end = c.trace(ctx, &Operation{Name: OpAllocate, Channel: p.channel.info.Name, Bytes: p.bytes})
		defer func() { end(l, err) }()
	}
	if err := p.usable(); err != nil {
		return nil, err
	}
	if !p.used.Load() {
		p.used.Store(true)
	}
	s := p.take(1)
	if s == nil {
		if s, err = p.await(ctx, try); err != nil {
			return nil, err
		}
	}
	return s.lend(ctx)
}

// await returns a slot that comes back, or a slot of a new arena.
func (p *Publisher) await(caller context.Context, try session.Attempt) (*slot, error) {
	if s := p.look(); s != nil {
		return s, nil
	}
	c := p.channel.client
	began := time.Now()
	defer func() { c.memoryWaits.over(began, true) }()
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	ctx := &patient{Context: caller, client: c}
	for {
		if err := p.usable(); err != nil {
			return nil, err
		}
		if p.slots() == 0 {
			if err := p.first(caller, try); err != nil {
				return nil, err
			}
		}
		var s *slot
		failed := false
		err := p.from.native.AwaitBack(ctx, func() bool {
			if s = p.look(); s != nil || p.usable() != nil || p.slots() == 0 {
				return true
			}
			p.grow()
			failed = bool(try) && len(p.making) == 0
			if failed {
				s = p.look() // the new arena may have come meanwhile
			}
			return failed
		})
		switch {
		case s != nil:
			return s, nil
		case failed:
			return nil, p.none()
		case err == nil:
		case errors.Is(caller.Err(), context.DeadlineExceeded) && c.session.Working().Err() == nil:
			return nil, session.Late(caller, p.none())
		default:
			return nil, p.from.failure(caller, err)
		}
	}
}

// loans returns the loans that are not published and not released.
func (p *Publisher) loans() (loans []*Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arenas {
		for i := range a.slots {
			if l := a.slots[i].loan.Load(); l != nil {
				loans = append(loans, l)
			}
		}
	}
	return loans
}

// none returns the error of a Loan that found no free slot.
func (p *Publisher) none() error {
	loans := len(p.loans())
	p.mu.Lock()
	defer p.mu.Unlock()
	slots, free := 0, 0
	for _, a := range p.arenas {
		slots += len(a.slots)
		free += len(a.free)
	}
	err := situation.Of(ErrLimit, "no memory for a frame of channel %q: of the %s of this publisher, %d are on loan, and %d have frames that the channel keeps or "+
		"subscribers hold; publish or release loans, release frames sooner, or make a pool with a larger max_bytes",
		p.channel.info.Name, count.Of(slots, "slot"), loans, slots-free-loans)
	if p.refusal != nil {
		err = fmt.Errorf("%w (a further arena: %w)", err, p.refusal)
	}
	return err
}

func (p *Publisher) send(ctx context.Context, try session.Attempt, l *Lease, o mempool.FrameOptions) (number uint64, err error) {
	if err := o.Validate(); err != nil {
		return 0, err
	}
	s := l.slot
	if s == nil || s.arena.of != p {
		return 0, situation.Of(ErrInvalid, "lease %d is not a loan of this publisher: publish a loan with the publisher that lent it, and any other lease with Channel.Publish",
			l.Grant().ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client.tracer != nil {
		var end func(uint64, error)
		ctx, end = l.traceSend(ctx, p.channel, &o)
		defer func() { end(number, err) }()
	}
	if l.ended {
		return 0, fmt.Errorf("%w; if it was published, the channel has its memory now: take a loan for each frame", l.client.hasEnded(l.info))
	}
	if err := p.usable(); err != nil {
		return 0, err
	}
	r := &s.record
	if o.Tensor != nil {
		t, err := p.channel.fits(l, o.Tensor)
		if err != nil {
			return 0, err
		}
		r.place(s.info, t, s.description.Base)
	} else {
		r.Description = s.description
	}
	ready, err := l.completed(ctx, o.Completion)
	if err != nil {
		return 0, err
	}
	if err := r.fill(&o, ready, p.from.timeline); err != nil {
		return 0, err
	}
	if ready != nil {
		s.wait = addFence(s.wait, *ready)
	}
	if number, err = p.from.publish(ctx, try, &r.Record); err != nil {
		return 0, l.unsent(ctx, err, ready)
	}
	l.ended = true
	s.loan.CompareAndSwap(l, nil) // the slot may have come back and be on loan again already
	l.client.session.Timelines.Unpin(l.info.Wait)
	return number, l.endOrder()
}

// Arenas and slots

// arena is one write lease of a Publisher, divided into slots.
type arena struct {
	of    *Publisher
	info  *mempool.Grant
	slots []slot
	free  []*slot // the newest last; Publisher.mu guards it
}

// slot is memory for one frame. It is free, or on loan, or in the channel. Only the goroutine that has taken the slot, or its loan, changes
// `wait` and `record`; for a slot in the channel, only reclaim does.
type slot struct {
	arena       *arena
	info        *mempool.Grant
	mem         *mempool.ImportedBlock
	memory      mempool.Memory
	wait        []mempool.Fence // fences that must be reached before the slot is written
	description *shmchannel.Description
	record      frameRecord
	loan        atomic.Pointer[Lease]
	round       atomic.Uint64 // how many times the slot has become free
}

// take takes a free slot of the n oldest arenas: the newest slot without running work. If every free slot has running work, it takes the
// oldest one. It prefers slots of older arenas, so that the slots of younger arenas all become free. If no slot is free, take returns nil.
func (p *Publisher) take(n int) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	var busy *arena
	for _, a := range p.arenas[:min(n, len(p.arenas))] {
		for i, s := range slices.Backward(a.free) {
			if len(s.wait) > 0 {
				s.wait = p.channel.client.session.Timelines.Left(s.wait)
			}
			if len(s.wait) == 0 {
				a.free = slices.Delete(a.free, i, i+1)
				return s
			}
		}
		if busy == nil && len(a.free) > 0 {
			busy = a
		}
	}
	if busy == nil {
		return nil
	}
	s := busy.free[0]
	busy.free = slices.Delete(busy.free, 0, 1)
	return s
}

// look takes a free slot, after it has reclaimed the slots that have come back.
func (p *Publisher) look() *slot {
	if leases := p.from.reclaim(); len(leases) > 0 {
		c := p.channel.client
		c.session.AddTask(func() { // a stopped service must not stop a Loan
			for _, l := range leases {
				_ = c.giveUp(l.info, l.wait) // giveUp fails only if the connection is gone
			}
		})
	}
	return p.take(math.MaxInt)
}

// lend makes a loan of a slot that take has returned.
func (s *slot) lend(ctx context.Context) (*Lease, error) {
	c := s.arena.of.channel.client
	l := &Lease{client: c, info: s.info, mem: s.mem, memory: s.memory, slot: s, buffer: s.info.Buffer}
	if len(s.wait) > 0 {
		c.session.Timelines.Pin(s.wait) // no page may be unmapped between pending and the lease's own pin
		left := c.pending(ctx, s.wait)
		c.session.Timelines.Pin(left)
		c.session.Timelines.Unpin(s.wait)
		if s.wait = left; len(left) > 0 {
			info := *s.info
			info.Wait = slices.Clone(left)
			l.info = &info
			l.ordering().Begin(info.Wait, false)
		}
	}
	s.loan.Store(l)
	if err := s.arena.of.usable(); err != nil { // Close may have looked for loans before the last step
		if ended := l.Release(true); !errors.Is(ended, ErrReleased) {
			err = errors.Join(err, ended)
		}
		return nil, err
	}
	return l, nil
}

// end ends a loan that was not published. The caller's work on the memory is done when the fences in `done` are reached.
func (s *slot) end(l *Lease, done []mempool.Fence) {
	for _, t := range done {
		s.wait = addFence(s.wait, t)
	}
	s.loan.CompareAndSwap(l, nil)
	s.back()
	s.arena.of.wake()
}

// back makes a slot free.
func (s *slot) back() {
	s.round.Add(1)
	p := s.arena.of
	p.mu.Lock()
	defer p.mu.Unlock()
	s.arena.free = append(s.arena.free, s)
}

// wake wakes the calls of Loan that wait.
func (p *Publisher) wake() {
	p.mu.Lock()
	waiting := p.waiting > 0
	p.mu.Unlock()
	if waiting {
		p.from.native.Wake()
	}
}

// slots returns the number of slots of all arenas.
func (p *Publisher) slots() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arenas {
		n += len(a.slots)
	}
	return n
}

// first asks for the first arena, unless another goroutine has made one meanwhile.
func (p *Publisher) first(ctx context.Context, try session.Attempt) error {
	select {
	case p.making <- struct{}{}:
	case <-ctx.Done():
		return situation.Ended(ctx)
	case <-p.channel.client.session.Working().Done():
		return context.Cause(p.channel.client.session.Working())
	}
	defer func() { <-p.making }()
	if p.slots() > 0 {
		return nil
	}
	n := p.channel.info.Capacity + arenaMore
	switch {
	case p.bytes > smallFrame:
	case p.pool.info.Kind == mempool.Host:
		n += smallMore
	default:
		n += streamMore
	}
	return p.extend(ctx, try, n)
}

// grow begins to ask for a further arena, with as many slots as there are, unless somebody asks already or the service has refused a
// moment ago.
func (p *Publisher) grow() {
	p.mu.Lock()
	rests := time.Since(p.refused) < growRest
	p.mu.Unlock()
	if rests {
		return
	}
	select {
	case p.making <- struct{}{}:
	default:
		return
	}
	c := p.channel.client
	err := c.session.Go(func() {
		err := p.extend(c.session.Working(), session.Once, p.slots())
		p.mu.Lock()
		if p.refusal = err; err != nil {
			p.refused = time.Now()
		}
		p.mu.Unlock()
		<-p.making
		p.wake()
	})
	if err != nil { // the client is being closed
		<-p.making
	}
}

// extend asks the service for an arena of n slots. If there is no room, it asks for half as many, and so on. `last` says whether the request
// for one slot waits.
func (p *Publisher) extend(ctx context.Context, last session.Attempt, n int) error {
	for ; ; n = max(n/2, 1) {
		if n > 1 && p.stride > math.MaxInt64/uint64(n) {
			continue
		}
		try := session.Once
		if n <= 1 {
			try = last
		}
		l, err := p.pool.alloc(ctx, try, mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{uint64(max(n, 1)), p.stride}})
		switch {
		case err == nil:
			return p.add(l, max(n, 1))
		case n <= 1 || !noRoom(err):
			return err
		}
	}
}

// noRoom reports whether an allocation failed because the pool had no room.
func noRoom(err error) bool { return errors.Is(err, ErrLimit) || errors.Is(err, ErrOutOfMemory) }

// add makes an arena of a lease.
func (p *Publisher) add(l *Lease, n int) error {
	info := *l.info
	info.Wait, info.Event = nil, nil
	a := &arena{of: p, info: &info, slots: make([]slot, n), free: make([]*slot, n)}
	memory, err := l.mem.Memory(true)
	if err != nil {
		return errors.Join(err, l.Release(true))
	}
	shared := info
	shared.Bytes, shared.Tensor = p.bytes, p.tensor
	for i := range a.slots {
		s, base := &a.slots[i], uint64(i)*p.stride
		s.arena, s.info, s.mem, s.memory, s.wait = a, &shared, l.mem, mempool.PartOf(memory, base, p.bytes), slices.Clone(l.info.Wait)
		s.record.place(s.info, &p.tensor, base)
		s.record.Owner = s
		if s.description, err = p.from.native.Describe(describe(&p.tensor, base)); err != nil {
			return errors.Join(err, l.Release(true))
		}
		a.free[n-1-i] = s
	}
	if !p.keep(l, a) { // the client or the Publisher was closed meanwhile
		if err := l.Release(true); !errors.Is(err, ErrReleased) {
			return errors.Join(p.usable(), err)
		}
		return p.usable()
	}
	l.leave()
	p.channel.client.shared.startTicks(p.channel.client)
	return l.endOrder()
}

// keep adds an arena to the Publisher and ends the lease, whose memory the arena then has. It returns false if the lease has ended or the
// Publisher was closed.
func (p *Publisher) keep(l *Lease, a *arena) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.ended || p.closed.Load() {
		return false
	}
	l.ended = true
	p.arenas = append(p.arenas, a)
	return true
}

// giveBack gives the arenas back to the service of which every slot is free, unless a call of Loan waits.
func (p *Publisher) giveBack() {
	var free []*arena
	p.mu.Lock()
	if p.waiting == 0 || p.closed.Load() {
		p.arenas = slices.DeleteFunc(p.arenas, func(a *arena) bool {
			if len(a.free) < len(a.slots) {
				return false
			}
			free = append(free, a)
			return true
		})
	}
	p.mu.Unlock()
	for _, a := range free {
		_ = p.channel.client.giveUp(a.info, a.work()) // giveUp fails only if the connection is gone
	}
}

// work returns the fences that must be reached before any memory of the arena is written. All slots of the arena are free.
func (a *arena) work() (wait []mempool.Fence) {
	for i := range a.slots {
		for _, t := range a.slots[i].wait {
			wait = addFence(wait, t)
		}
	}
	return wait
}

// tick is called at intervals of tickEvery. It reports whether the Publisher still has arenas.
func (p *Publisher) tick() bool {
	used := p.used.Swap(false)
	p.mu.Lock()
	idle := !used && p.rested
	p.rested = !used
	p.mu.Unlock()
	if idle || p.closed.Load() {
		p.giveBack()
	}
	return p.slots() > 0
}
