package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is a session's right to use a buffer. The buffer's memory is mapped in this process. The zero Lease is not usable: [Blocks.Obtain],
// [Lease.InitFrame] and [Lease.InitLoan] make it one.
type Lease struct {
	session *Session

	prev, next *Lease // neighbours in Blocks.leases
	buffer     uint64 // copy of info.Buffer, because info may be replaced; set when the lease is added to the list

	mu     sync.RWMutex   // read-locked while the memory is used
	info   *mempool.Grant // other leases may share this Grant, so nobody changes it in place
	mem    *mempool.ImportedBlock
	memory mempool.Memory // the mapping that the lease uses; if nil, reachLocked asks mem
	by     Holder         // what has the lease's memory; nil: the service

	order  atomic.Pointer[mempool.Order] // nil if there is nothing to wait for, and no work of this package on the memory
	failed atomic.Bool                   // the writer of the content died before the content was complete
	ended  bool
	unsure bool // Publish got no answer, so only the service knows whether this is a read lease
	frame  bool // the lease is of a frame: it counts as a lease on its block, and its end has at most one fence
	// allocated says that the lease came with its buffer, so that the buffer has no name.
	allocated bool
	version   atomic.Uint64 // version of what the name referred to, or of what was published under it; 0: the lease has no name
}

// Holder is what a lease's memory belongs to, if the service does not know the lease: the frame of a consumer, or the chunk of a publisher.
type Holder interface {
	// End runs when the lease ends, with the lease locked. This client's work on the memory is done when the fences in `done` are reached.
	End(l *Lease, incomplete bool, done []mempool.Fence) error
	// Nameless returns the error that says why the memory cannot be published under a name.
	Nameless() error
}

// Obtain asks the service for a lease, and makes l this lease. `limit` points to the request's field for the time limit.
func (b *Blocks) Obtain(ctx context.Context, l *Lease, try Attempt, r wire.Request, limit *uint64) error {
	s := b.session
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	came, err := b.grant(ctx, try, r, limit)
	if err != nil {
		return err
	}
	l.version.Store(came.Version)
	if err := b.adoptGrant(ctx, l, came.Grant); err != nil {
		return errors.Join(err, l.EndLocked(false)) // nobody else knows the lease yet
	}
	return nil
}

// grant asks the service for a lease.
func (b *Blocks) grant(ctx context.Context, try Attempt, r wire.Request, limit *uint64) (wire.GrantReply, error) {
	var reply wire.GrantReply
	err := b.session.Wait(ctx, try, r, limit, Call{Into: &reply,
		OnReply: func(fds *seqpacket.FDs) { b.arrived(reply.Grant, fds) },
		Undo:    func() { _ = b.ReleaseGrant(convert.Grant(reply.Grant), false) }})
	if err != nil {
		return wire.GrantReply{}, err // do not read reply: the receiving goroutine may still write it
	}
	return reply, nil
}

// Known returns the buffer and the version of what the name referred to, for a request `get` in the session s. They are those of no
// publication if the lease belongs to another run of the service, because its ids say nothing there.
func (l *Lease) Known(s *Session) (buffer, version uint64) {
	if l.session.Epoch != s.Epoch {
		return 0, 1
	}
	return l.buffer, l.version.Load()
}

// Version returns the version of what the name referred to, or of what was published under it; 0: the lease has no name.
func (l *Lease) Version() uint64 { return l.version.Load() }

// ObtainUnmapped asks the service for a lease and does not map its memory. It returns the block's export, too.
func (b *Blocks) ObtainUnmapped(ctx context.Context, try Attempt, r wire.Request, limit *uint64) (info *mempool.Grant, export []byte, err error) {
	s := b.session
	if err := s.Enter(); err != nil {
		return nil, nil, err
	}
	defer s.Leave()
	came, err := b.grant(ctx, try, r, limit)
	if err != nil {
		return nil, nil, err
	}
	b.lockAndApply()
	defer b.mu.Unlock()
	if of := b.blocks[came.Grant.Block]; of != nil {
		export = of.data
	}
	return convert.Grant(came.Grant), export, nil
}

// Allocate asks the service for a buffer, and makes l the write lease on it.
func (b *Blocks) Allocate(ctx context.Context, l *Lease, try Attempt, pool *Pool, t mempool.Tensor) error {
	r := &wire.Alloc{Pool: pool.Info.ID, Tensor: convert.WireTensor(t)}
	began := time.Now()
	err := b.Obtain(ctx, l, try, r, &r.Wait)
	b.MemoryWaits.Over(began, true)
	if err != nil {
		return err
	}
	l.mu.Lock() // the client may close meanwhile, and end the lease
	defer l.mu.Unlock()
	l.allocated = true
	b.Allocated.Add(1)
	b.AllocatedBytes.Add(l.info.Bytes)
	return nil
}

// AllocatedLocked reports whether the lease came with its buffer: from [Blocks.Allocate] or [Blocks.Renew].
func (l *Lease) AllocatedLocked() bool { return l.allocated }

// Renew makes l the write lease that `info` describes: a lease that came with its buffer, was published as a frame and has come back. It
// returns false if the lease must be released instead.
func (b *Blocks) Renew(l *Lease, info *mempool.Grant) bool {
	b.lockAndApply()
	defer b.mu.Unlock()
	of := b.blocks[info.Block]
	if b.closing || b.session.Over() != nil || of == nil || of.recalled || of.mem == nil {
		return false
	}
	m, err := of.mem.Memory(true)
	if err != nil {
		return false
	}
	l.session, l.info, l.mem, l.memory, l.allocated = b.session, info, of.mem, m, true
	b.leases.add(l)
	return true
}

// adoptGrant makes l a lease that the service has granted, and maps its memory. If adoptGrant fails, the caller ends the lease.
func (b *Blocks) adoptGrant(ctx context.Context, l *Lease, came wire.Grant) error {
	l.session, l.info = b.session, convert.Grant(came)
	if len(l.info.Wait) > 0 {
		l.ordering().Begin(l.info.Wait, !came.Write)
	}
	p, err := b.Pool(ctx, came.Pool)
	if err != nil {
		return err
	}
	if came.Event != nil {
		l.ordering().Expect(came.Event, p.Info.Device.UUID)
	}
	if l.mem, _, err = b.mapped(p, came); err != nil {
		return err
	}
	if l.memory, err = l.reachLocked(); err != nil {
		return err
	}
	for _, t := range l.info.Wait { // map the timelines now, because later calls may have no context
		if _, err := b.session.Timelines.Page(ctx, t.Timeline); err != nil {
			return err
		}
	}
	b.lockAndApply()
	defer b.mu.Unlock()
	if b.closing {
		return ErrClientClosed
	}
	b.addLocked(l)
	return nil
}

// Region is a part of a block, of which a publisher makes loans.
type Region struct {
	Info   *mempool.Grant // nobody changes it in place
	Mem    *mempool.ImportedBlock
	Memory mempool.Memory
}

// InitLoan makes l the lease of a region. The memory may be used after the fences in `wait` are reached; EndLocked, or the publisher when it has
// published the loan, unpins them.
func (l *Lease) InitLoan(s *Session, by Holder, r *Region, wait []mempool.Fence) {
	l.session, l.by, l.info, l.mem, l.memory, l.buffer = s, by, r.Info, r.Mem, r.Memory, r.Info.Buffer
	if len(wait) > 0 {
		info := *r.Info
		info.Wait = wait
		l.info = &info
		l.ordering().Begin(wait, false)
	}
}

// Whole returns the region of a write lease that the service has granted.
func (l *Lease) Whole() (Region, error) {
	m, err := l.mem.Memory(true)
	return Region{l.info, l.mem, m}, err
}

// MoveTo ends the lease if it has not ended and `keep` takes its memory. The service does not know this. `keep` returns false if it does not
// take the memory.
func (l *Lease) MoveTo(keep func() bool) (moved bool, err error) {
	l.mu.Lock()
	moved = !l.ended && keep()
	l.ended = l.ended || moved
	l.mu.Unlock()
	if !moved {
		return false, nil
	}
	l.Forget()
	return true, l.endOrder()
}

// Holder returns what has the lease's memory; nil if it is the service.
func (l *Lease) Holder() Holder { return l.by }

// Lock locks the lease, for the methods whose names end in Locked. Nobody uses the memory while the lease is locked.
func (l *Lease) Lock() { l.mu.Lock() }

// Unlock ends what Lock began.
func (l *Lease) Unlock() { l.mu.Unlock() }

// InfoLocked returns the description of the lease, which nobody may change.
func (l *Lease) InfoLocked() *mempool.Grant { return l.info }

// Info is like InfoLocked, for a lease that is not locked.
func (l *Lease) Info() *mempool.Grant {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.info
}

// Ended reports whether the lease has ended.
func (l *Lease) Ended() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.ended
}

// AliveLocked returns an error if the lease has ended.
func (l *Lease) AliveLocked() error {
	if !l.ended {
		return nil
	}
	return l.session.HasEnded(l.info)
}

// HasEnded returns the error of a call on a lease that has ended. If the session has ended too, the error says so.
func (s *Session) HasEnded(info *mempool.Grant) error {
	err := typed.Errorf(mempool.ErrReleased, "lease %d, of %s%v, has ended", info.ID, info.Tensor.DType, info.Tensor.Shape)
	if why := context.Cause(s.working); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// With passes the buffer's memory to the function f. The memory stays mapped during the call of f. If n is not 0, With first waits until the
// memory may be used, or makes the memory's own stream wait.
func (l *Lease) With(ctx context.Context, off, n uint64, write bool, f func(mempool.Memory) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.ended:
		return l.session.HasEnded(l.info)
	case write && !l.info.Write:
		return typed.Errorf(mempool.ErrInvalid, "lease %d is a read lease; ask for a write lease", l.info.ID)
	case off > l.info.Bytes || n > l.info.Bytes-off:
		return typed.Errorf(mempool.ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, l.info.Bytes)
	}
	m, err := l.reachLocked()
	if err != nil {
		return err
	}
	if n > 0 { // if n is 0, the caller waits by itself
		if o := l.order.Load(); o != nil {
			if err := o.Before(ctx, m.Queue()); err != nil {
				return err
			}
		}
	}
	if write && m.Queue() != mempool.CPU {
		if _, err := l.session.Timelines.Clock(ctx); err != nil && ctx.Err() != nil { // make the timeline now, so that Release need not ask for it
			return err
		}
		o := l.ordering()
		o.Use()
		defer o.Use() // a queue that Order.Give makes wait meanwhile does not wait for all of it
	}
	return f(m)
}

// reachLocked returns the memory for this lease.
func (l *Lease) reachLocked() (mempool.Memory, error) {
	if l.memory != nil {
		return l.memory, nil
	}
	m, err := l.mem.Memory(l.info.Write)
	if err == nil && l.info.Base > 0 {
		m = mempool.PartOf(m, l.info.Base, l.info.Bytes)
	}
	return m, err
}

// ordering returns the lease's order, and makes the order if the lease has no order yet.
func (l *Lease) ordering() *mempool.Order {
	if l.order.Load() == nil {
		l.order.CompareAndSwap(nil, l.session.Timelines.Order())
	}
	return l.order.Load()
}

// Used notes that this client may have begun work on the memory by another lease. Nobody else knows the lease yet.
func (l *Lease) Used(ctx context.Context) {
	if m, err := l.reachLocked(); err == nil && m.Queue() != mempool.CPU {
		_, _ = l.session.Timelines.Clock(ctx) // make the timeline now: without one, Release waits for the work
		l.ordering().Use()
	}
}

// Order returns the lease's order, or nil if the lease has none.
func (l *Lease) Order() *mempool.Order { return l.order.Load() }

// Check returns an error if the client knows that the content is incomplete.
func (l *Lease) Check(ctx context.Context) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.ended {
		return l.session.HasEnded(l.info)
	}
	return l.CheckLocked(ctx)
}

// CheckLocked is like Check, for a lease that With has read-locked.
func (l *Lease) CheckLocked(ctx context.Context) error {
	var err error
	if o := l.order.Load(); o != nil {
		err = o.Check(ctx)
	}
	if l.session.Blocks.hasFailed(l) && !errors.Is(err, mempool.ErrContentFailed) {
		return typed.Errorf(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", l.buffer)
	}
	return err
}
