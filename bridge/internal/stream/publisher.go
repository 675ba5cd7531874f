package stream

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
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Publisher publishes frames of one description in a channel, from arenas. An arena is a write lease, which is divided into chunks of equal
// size.
type Publisher struct {
	// Bytes is the size of a frame.
	Bytes uint64

	channel *Channel
	from    *Producer
	pool    *session.Pool
	tensor  mempool.Tensor
	// described is the description of every chunk, but for its base.
	described shmchannel.Description
	stride    uint64        // of a chunk
	making    chan struct{} // has a value while a goroutine asks the service for an arena
	most      int           // the greatest number of chunks that a request for an arena had; the goroutine that asks uses it
	used      atomic.Bool   // Loan was called since the last tick
	closed    atomic.Bool

	mu      sync.Mutex
	arenas  []*arena
	waiting int       // number of calls of Loan that wait
	rested  bool      // the Publisher was not used between the last two ticks
	refused time.Time // when the service last refused a further arena
	refusal error
}

const (
	// chunkAlign is the number of bytes of which the size of a chunk is a multiple.
	chunkAlign = 512
	// ArenaMore is how many chunks more an arena has than the channel keeps frames: one for a loan, and one for a frame that the channel keeps
	// no more and a consumer still uses.
	ArenaMore = 2
	// For small frames, of at most smallFrame bytes, an arena has SmallMore chunks more, or streamMore chunks if streams write the memory. Then
	// the Publisher looks less often for chunks that have come back, and the work of readers on them has more often ended.
	smallFrame = 256 << 10
	// SmallMore is used with smallFrame.
	SmallMore  = 4
	streamMore = 16
	// growRest is how long a Publisher asks for no further arena after the service has refused one.
	growRest = 200 * time.Millisecond
)

// Publisher returns a Publisher for frames with the description t. It joins the channel if the client is not a producer of it yet.
func (ch *Channel) Publisher(ctx context.Context, t mempool.Tensor) (*Publisher, error) {
	bytes, err := t.Extent()
	if err != nil {
		return nil, err
	}
	pool, err := ch.streams.session.Blocks.Pool(ctx, ch.Identity.Pool)
	if err != nil {
		return nil, err
	}
	from, err := ch.producer(ctx)
	if err != nil {
		return nil, err
	}
	described, err := describe(&t, 0)
	if err != nil {
		return nil, err
	}
	stride := max((bytes+chunkAlign-1)&^(chunkAlign-1), chunkAlign)
	if stride > math.MaxInt64 {
		stride = bytes // no pool has room for one chunk
	}
	p := &Publisher{channel: ch, from: from, pool: pool, tensor: t.Clone(), described: described, Bytes: bytes, stride: stride, making: make(chan struct{}, 1)}
	ch.streams.addPublisher(p)
	return p, nil
}

// Close ends the Publisher. It gives an arena back as soon as all chunks of the arena are free. The program can still use and release its
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
	if err := p.from.session.Over(); err != nil {
		return err
	}
	if p.from.forgotten.Load() {
		return typed.Errorf(mempool.ErrClosed, "channel %q is closed", p.channel.Identity.Name)
	}
	if p.closed.Load() {
		return typed.Errorf(mempool.ErrClosed, "this publisher of channel %q was closed", p.channel.Identity.Name)
	}
	return nil
}

// Loan makes l a loan of a chunk. It prefers memory on which no work of readers is running. If no chunk is free, Loan waits until one comes
// back.
func (p *Publisher) Loan(ctx context.Context, try session.Attempt, l *session.Lease) error {
	if err := p.usable(); err != nil {
		return err
	}
	if !p.used.Load() {
		p.used.Store(true)
	}
	s := p.take(1) // from the oldest arena; before a younger one is used, await looks what came back, so that younger arenas empty
	if s == nil {
		var err error
		if s, err = p.await(ctx, try); err != nil {
			return err
		}
	}
	return s.loanTo(ctx, l)
}

// await returns a chunk that comes back, or a chunk of a new arena.
func (p *Publisher) await(caller context.Context, try session.Attempt) (*chunk, error) {
	if s := p.look(); s != nil {
		return s, nil
	}
	ss := p.from.session
	began := time.Now()
	defer func() { ss.Blocks.MemoryWaits.Over(began, true) }()
	p.mu.Lock()
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	ctx := &patient{Context: caller, session: ss}
	for {
		if err := p.usable(); err != nil {
			return nil, err
		}
		if p.Chunks() == 0 {
			if err := p.first(caller, try); err != nil {
				return nil, err
			}
		}
		var s *chunk
		failed := false
		err := p.from.shm.AwaitBack(ctx, func() bool {
			chunks := p.Chunks()
			if s = p.look(); s != nil || p.usable() != nil || chunks == 0 {
				return true
			}
			p.grow(chunks)
			failed = try == session.Once && len(p.making) == 0
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
		case errors.Is(caller.Err(), context.DeadlineExceeded) && ss.Over() == nil:
			return nil, session.Late(caller, p.none())
		default:
			return nil, p.from.failure(caller, err)
		}
	}
}

// Loans returns the loans that are not published and not released.
func (p *Publisher) Loans() (loans []*session.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arenas {
		for i := range a.chunks {
			if l := a.chunks[i].loan.Load(); l != nil {
				loans = append(loans, l)
			}
		}
	}
	return loans
}

// none returns the error of a loan that found no free chunk.
func (p *Publisher) none() error {
	loans := len(p.Loans())
	p.mu.Lock()
	defer p.mu.Unlock()
	chunks, free := 0, 0
	for _, a := range p.arenas {
		chunks += len(a.chunks)
		free += len(a.free)
	}
	err := typed.Errorf(mempool.ErrLimit, "no memory for a frame of channel %q: of the %s of this publisher, %d are on loan, and %d have frames that the channel keeps or "+
		"subscribers hold; publish or release loans, release frames sooner, or make a pool with a larger max_bytes",
		p.channel.Identity.Name, count.Of(chunks, "chunk"), loans, chunks-free-loans)
	if p.refusal != nil {
		err = fmt.Errorf("%w (a further arena: %w)", err, p.refusal)
	}
	return err
}

// Publish publishes a loan as a frame and returns the frame's number. The loan has ended then.
func (p *Publisher) Publish(ctx context.Context, try session.Attempt, l *session.Lease, o mempool.FrameOptions) (number uint64, err error) {
	s, isLoan := l.Holder().(*chunk)
	if !isLoan || s.arena.of != p {
		return 0, typed.Errorf(mempool.ErrInvalid, "lease %d is not a loan of this publisher: publish a loan with the publisher that lent it, and any other "+
			"lease with Channel.Publish", l.Info().ID)
	}
	l.Lock()
	defer l.Unlock()
	if err := l.AliveLocked(); err != nil {
		return 0, fmt.Errorf("%w; if it was published, the channel has its memory now: take a loan for each frame", err)
	}
	if err := p.usable(); err != nil {
		return 0, err
	}
	r := &s.record
	if err := r.pack(&o); err != nil {
		return 0, err
	}
	if o.Tensor != nil {
		t, err := p.channel.fits(l.InfoLocked(), o.Tensor)
		if err != nil {
			return 0, err
		}
		if err := r.place(s.Info, t, s.description.Base); err != nil {
			return 0, err
		}
	} else {
		r.Description = s.description
	}
	var gone func() bool
	if o.Ready != nil {
		gone = s.since()
	}
	ready, err := l.ReadyLocked(ctx, o.Completion, gone)
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
		return 0, l.UnsentLocked(ctx, err, ready)
	}
	s.loan.CompareAndSwap(l, nil) // the chunk may have come back and be on loan again already
	p.from.session.Timelines.Unpin(l.InfoLocked().Wait)
	return number, l.SentLocked()
}

// Arenas and chunks

// arena is one write lease of a Publisher, divided into chunks.
type arena struct {
	of     *Publisher
	info   *mempool.Grant
	chunks []chunk
	free   []*chunk // the newest last; Publisher.mu guards it
}

// chunk is memory for one frame. It is free, or on loan, or in the channel. Only the goroutine that has taken the chunk, or its loan, changes
// `wait` and `record`; for a chunk in the channel, only reclaim does.
type chunk struct {
	session.Region
	arena       *arena
	wait        []mempool.Fence // fences that must be reached before the chunk is written
	description *shmchannel.Description
	record      frameRecord
	loan        atomic.Pointer[session.Lease]
	round       atomic.Uint64 // how many times the chunk has become free
}

// take takes a free chunk of the n oldest arenas: the newest chunk without running work. If every free chunk has running work, it takes the
// oldest one. It prefers chunks of older arenas, so that the chunks of younger arenas all become free. If no chunk is free, take returns nil.
func (p *Publisher) take(n int) *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	var busy *arena
	for _, a := range p.arenas[:min(n, len(p.arenas))] {
		for i, s := range slices.Backward(a.free) {
			if len(s.wait) > 0 {
				s.wait = p.from.session.Timelines.Left(s.wait)
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

// look takes a free chunk, after it has reclaimed the chunks that have come back.
func (p *Publisher) look() *chunk {
	if p.from.reclaim() {
		p.from.session.AddTask(func() { p.from.collect(p.from.session.Working()) }) // a stopped service must not stop a loan
	}
	return p.take(math.MaxInt)
}

// loanTo makes l a loan of a chunk that take has returned.
func (s *chunk) loanTo(ctx context.Context, l *session.Lease) error {
	p := s.arena.of
	if t := &p.from.session.Timelines; len(s.wait) > 0 {
		t.Pin(s.wait) // no page may be unmapped between Pending and the lease's own pin
		left := t.Pending(ctx, s.wait)
		t.Pin(left)
		t.Unpin(s.wait)
		s.wait = left
	}
	l.InitLoan(p.from.session, s, &s.Region, slices.Clone(s.wait))
	s.loan.Store(l)
	if err := p.usable(); err != nil { // Close may have looked for loans before the last step
		if ended := l.Release(session.Unasked, true); !errors.Is(ended, mempool.ErrReleased) {
			err = errors.Join(err, ended)
		}
		return err
	}
	return nil
}

// End ends a loan that was not published. The caller's work on the memory is done when the fences in `done` are reached.
func (s *chunk) End(l *session.Lease, _ bool, done []mempool.Fence) error {
	for _, t := range done {
		s.wait = addFence(s.wait, t)
	}
	s.loan.CompareAndSwap(l, nil)
	s.back()
	s.arena.of.wake()
	return nil
}

// Nameless returns an error: a loan cannot be published under a name.
func (s *chunk) Nameless() error {
	return typed.Errorf(mempool.ErrInvalid, "a loan of a publisher can only be published by this publisher; allocate a lease for content with a name")
}

// since returns a function that reports whether the chunk has become free since the call of since.
func (s *chunk) since() (freed func() bool) {
	round := s.round.Load()
	return func() bool { return s.round.Load() != round }
}

// back makes a chunk free.
func (s *chunk) back() {
	s.round.Add(1)
	p := s.arena.of
	p.mu.Lock()
	defer p.mu.Unlock()
	s.arena.free = append(s.arena.free, s)
}

// wake wakes the calls of Loan that wait.
func (p *Publisher) wake() {
	if p.Waits() {
		p.from.shm.Wake()
	}
}

// Waits reports whether a call of Loan waits.
func (p *Publisher) Waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting > 0
}

// Chunks returns the number of chunks of all arenas.
func (p *Publisher) Chunks() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arenas {
		n += len(a.chunks)
	}
	return n
}

// first asks for the first arena, unless another goroutine has made one meanwhile.
func (p *Publisher) first(ctx context.Context, try session.Attempt) error {
	select {
	case p.making <- struct{}{}:
	case <-ctx.Done():
		return typed.Ended(ctx)
	case <-p.from.session.Working().Done():
		return p.from.session.Over()
	}
	defer func() { <-p.making }()
	if p.Chunks() > 0 {
		return nil
	}
	n := p.channel.Identity.Capacity + ArenaMore
	switch {
	case p.Bytes > smallFrame:
	case p.pool.Info.Kind == mempool.Host:
		n += SmallMore
	default:
		n += streamMore
	}
	p.most = n
	return p.extend(ctx, try, n)
}

// grow begins to ask for a further arena, unless somebody asks already, the service has refused a moment ago, or an arena has come since the
// publisher had `chunks`.
func (p *Publisher) grow(chunks int) {
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
	if p.Chunks() > chunks {
		<-p.making
		return
	}
	ss := p.from.session
	err := ss.Go(func() {
		for p.most < p.Chunks() {
			p.most *= 2
		}
		err := p.extend(ss.Working(), session.Once, p.most)
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

// extend asks the service for an arena of n chunks. If there is no room, it asks for half as many, and so on. `last` says whether the request
// for one chunk waits. Until no arena is left, every n is the same as before or doubled. So an arena fills the block of an arena that went
// back: a smaller arena would use up the whole block.
func (p *Publisher) extend(ctx context.Context, last session.Attempt, n int) error {
	for ; ; n = max(n/2, 1) {
		if n > 1 && p.stride > math.MaxInt64/uint64(n) {
			continue
		}
		try := session.Once
		if n <= 1 {
			try = last
		}
		l := new(session.Lease)
		err := p.from.session.Blocks.Allocate(ctx, l, try, p.pool, mempool.Tensor{DType: mempool.Uint8, Shape: []uint64{uint64(max(n, 1)), p.stride}})
		switch {
		case err == nil:
			return p.add(l, max(n, 1))
		case n <= 1 || !noRoom(err):
			return err
		}
	}
}

// noRoom reports whether an allocation failed because the pool had no room.
func noRoom(err error) bool {
	return errors.Is(err, mempool.ErrLimit) || errors.Is(err, mempool.ErrOutOfMemory)
}

// add makes an arena of a lease.
func (p *Publisher) add(l *session.Lease, n int) error {
	whole, err := l.Whole()
	if err != nil {
		return errors.Join(err, l.Release(session.Unasked, true))
	}
	info := *whole.Info
	info.Wait, info.Event = nil, nil
	a := &arena{of: p, info: &info, chunks: make([]chunk, n), free: make([]*chunk, n)}
	shared := info
	shared.Bytes, shared.Tensor = p.Bytes, p.tensor
	described := p.described
	for i := range a.chunks {
		s, base := &a.chunks[i], uint64(i)*p.stride
		s.arena, s.wait = a, slices.Clone(whole.Info.Wait)
		s.Region = session.Region{Info: &shared, Mem: whole.Mem, Memory: mempool.PartOf(whole.Memory, base, p.Bytes)}
		described.Base = base
		if s.description, err = p.from.shm.Describe(described); err != nil {
			return errors.Join(err, l.Release(session.Unasked, true))
		}
		s.record.at(s.Info)
		s.record.Owner = s
		a.free[n-1-i] = s
	}
	kept, err := l.MoveTo(func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed.Load() || p.from.forgotten.Load() { // nobody would give the arena back
			return false
		}
		p.arenas = append(p.arenas, a)
		return true
	})
	if !kept { // the client or the Publisher was closed meanwhile
		if err := l.Release(session.Unasked, true); !errors.Is(err, mempool.ErrReleased) {
			return errors.Join(p.usable(), err)
		}
		return p.usable()
	}
	p.from.streams.startTicks()
	return err
}

// giveBack gives the arenas back to the service of which every chunk is free, unless a call of Loan waits. While the client is being closed,
// giveBack does nothing: Close itself releases the arenas.
func (p *Publisher) giveBack() {
	if p.from.session.Enter() != nil {
		return
	}
	defer p.from.session.Leave()
	var free []*arena
	p.mu.Lock()
	if p.waiting == 0 || p.closed.Load() {
		p.arenas = slices.DeleteFunc(p.arenas, func(a *arena) bool {
			if len(a.free) < len(a.chunks) {
				return false
			}
			free = append(free, a)
			return true
		})
	}
	p.mu.Unlock()
	for _, a := range free {
		_ = p.from.streams.giveUp(a.info, a.work()) // giveUp fails only if the connection is gone
	}
}

// work returns the fences that must be reached before any memory of the arena is written. All chunks of the arena are free.
func (a *arena) work() (wait []mempool.Fence) {
	for i := range a.chunks {
		for _, t := range a.chunks[i].wait {
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
	return p.Chunks() > 0
}

// IsLoan reports whether a lease is a loan of a publisher.
func IsLoan(l *session.Lease) bool {
	_, loan := l.Holder().(*chunk)
	return loan
}
