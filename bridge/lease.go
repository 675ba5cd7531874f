package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is a client's right to use a buffer. The buffer's memory is mapped in the client's process.
type Lease struct {
	client *Client

	prev, next *Lease // neighbours in Client.leases
	buffer     uint64 // copy of info.Buffer, because info may be replaced; set when the lease is added to the list

	mu     sync.RWMutex   // read-locked while the memory is used
	info   *mempool.Grant // other leases may share this Grant, so nobody changes it in place
	mem    *mempool.ImportedBlock
	memory mempool.Memory // the mapping that the lease uses; if nil, reach asks mem
	ended  bool

	order  atomic.Pointer[mempool.Order] // nil if there is nothing to wait for, and no work of this package on the memory
	failed atomic.Bool                   // the writer of the content died before the content was complete
	unsure bool                          // Publish got no answer, so only the service knows whether this is a read lease

	taken *taken // set for the lease of a frame; the service does not know such leases
	slot  *slot  // set for a loan of a Publisher
}

// LeaseOptions says how to lease an existing buffer.
type LeaseOptions struct {
	// Write asks for a write lease, which excludes all other leases.
	Write bool
}

// Get leases the buffer that is published under a name. Get waits until the name exists, and until all leases that exclude the new lease
// have ended.
//
// Errors: [ErrNotFound] or [ErrBusy] at the deadline, [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Get(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	return c.get(ctx, session.Waiting, name, o)
}

// TryGet is like [Client.Get], but does not wait.
//
// Errors: [ErrNotFound], [ErrBusy], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) TryGet(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	return c.get(ctx, session.Once, name, o)
}

func (c *Client) get(ctx context.Context, try session.Attempt, name string, o LeaseOptions) (l *Lease, err error) {
	if c.tracer != nil {
		var end func(*Lease, error)
		ctx, end = c.trace(ctx, &Operation{Name: OpGet, Buffer: name})
		defer func() { end(l, err) }()
	}
	r := &wire.Get{Name: name, Write: o.Write}
	return c.lease(ctx, try, r, &r.Wait)
}

// Lease leases a buffer by its id and generation. It waits until all leases that exclude the new lease have ended.
//
// Errors: [ErrBusy] at the deadline, [ErrStale], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Lease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	return c.leaseBuffer(ctx, session.Waiting, buffer, generation, o)
}

// TryLease is like [Client.Lease], but does not wait.
//
// Errors: [ErrBusy], [ErrStale], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) TryLease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	return c.leaseBuffer(ctx, session.Once, buffer, generation, o)
}

func (c *Client) leaseBuffer(ctx context.Context, try session.Attempt, buffer, generation uint64, o LeaseOptions) (l *Lease, err error) {
	if c.tracer != nil {
		var end func(*Lease, error)
		ctx, end = c.trace(ctx, &Operation{Name: OpLease})
		defer func() { end(l, err) }()
	}
	r := &wire.LeaseBuffer{Buffer: buffer, Generation: generation, Write: o.Write}
	return c.lease(ctx, try, r, &r.Wait)
}

// lease asks the service for a lease. limit points to the request's field for the time limit.
func (c *Client) lease(ctx context.Context, try session.Attempt, r wire.Request, limit *uint64) (*Lease, error) {
	if err := c.session.Enter(); err != nil {
		return nil, err
	}
	defer c.session.Leave()
	var reply wire.GrantReply
	err := c.session.Wait(ctx, try, r, limit, session.Call{Into: &reply,
		Files: func(fds *seqpacket.FDs) { c.arrived(reply.Grant, fds) },
		Undo:  func() { _ = (&Lease{client: c, info: convert.Grant(reply.Grant)}).end(false) }})
	if err != nil {
		return nil, err
	}
	l, err := c.adopt(ctx, reply.Grant)
	if err != nil {
		return nil, errors.Join(err, l.end(false))
	}
	return l, nil
}

// adopt maps the memory of a lease that the service has granted. The caller has called Client.enter. If adopt fails, adopt still returns
// the lease, and the caller ends the lease.
func (c *Client) adopt(ctx context.Context, came wire.Grant) (*Lease, error) {
	l := &Lease{client: c, info: convert.Grant(came)}
	if len(l.info.Wait) > 0 {
		l.ordering().Begin(l.info.Wait, !came.Write)
	}
	p, err := c.pool(ctx, came.Pool)
	if err == nil {
		if came.Event != nil {
			l.ordering().Expect(came.Event, p.info.Device.UUID)
		}
		l.mem, l.memory, err = c.mapped(p, came)
	}
	for _, t := range l.info.Wait { // map the timelines now, because later calls may have no context
		if err == nil {
			_, err = c.session.Timelines.Page(ctx, t.Timeline)
		}
	}
	if err != nil {
		return l, err
	}
	c.mu.Lock()
	closing := c.closing
	if !closing {
		c.leases.add(l)
	}
	c.mu.Unlock()
	if closing {
		return l, session.ErrClientClosed
	}
	return l, nil
}

// Grant returns the description of the lease.
func (l *Lease) Grant() Grant {
	l.mu.RLock()
	defer l.mu.RUnlock()
	info := *l.info
	info.Tensor = info.Tensor.Clone()
	return info
}

// Tensor returns the description of the buffer's content.
func (l *Lease) Tensor() Tensor { return l.Grant().Tensor }

// hasEnded returns the error of a call on a lease that has ended. If the session has ended too, the error says so.
func (c *Client) hasEnded(info *mempool.Grant) error {
	err := situation.Of(ErrReleased, "lease %d, of %s%v, has ended", info.ID, info.Tensor.DType, info.Tensor.Shape)
	if why := context.Cause(c.session.Working()); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// with passes the buffer's memory to the function f. The memory stays mapped during the call of f. If n is not 0, the method `with` first
// waits until the memory may be used, or makes the memory's own stream wait.
func (l *Lease) with(ctx context.Context, off, n uint64, write bool, f func(mempool.Memory) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.ended:
		return l.client.hasEnded(l.info)
	case write && !l.info.Write:
		return situation.Of(ErrInvalid, "lease %d is a read lease; ask for a write lease", l.info.ID)
	case off > l.info.Bytes || n > l.info.Bytes-off:
		return situation.Of(ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, l.info.Bytes)
	}
	m, err := l.reach()
	if err != nil {
		return err
	}
	if n > 0 { // if n is 0, the caller waits by itself
		if err := l.await(ctx, m.Queue()); err != nil {
			return err
		}
	}
	if write && m.Queue() != mempool.CPU {
		if _, err := l.client.session.Timelines.Clock(ctx); err != nil && ctx.Err() != nil { // make the timeline now, so that Release need not ask for it
			return err
		}
		l.ordering().Use()
	}
	return f(m)
}

// reach returns the memory for this lease. The caller holds l.mu.
func (l *Lease) reach() (mempool.Memory, error) {
	if l.memory != nil {
		return l.memory, nil
	}
	return l.mem.Memory(l.info.Write)
}

// ordering returns the lease's order, and makes the order if the lease has no order yet.
func (l *Lease) ordering() *mempool.Order {
	if l.order.Load() == nil {
		l.order.CompareAndSwap(nil, l.client.session.Timelines.Order())
	}
	return l.order.Load()
}

// await makes later work in the queue wait for everything that must happen before the memory is used.
func (l *Lease) await(ctx context.Context, q mempool.Queue) error {
	if o := l.order.Load(); o != nil {
		return o.Before(ctx, q)
	}
	return nil
}

// endOrder closes the lease's order.
func (l *Lease) endOrder() error {
	if o := l.order.Load(); o != nil {
		return o.Close()
	}
	return nil
}

// CopyFrom copies src into the buffer, beginning at byte off. On a GPU, CopyFrom queues the copy behind the earlier work that must end
// before the memory is written, and does not wait. On the CPU, CopyFrom waits for this earlier work and then copies. The end of ctx does
// not interrupt a copy that has begun.
//
// Errors: [ErrReleased], [ErrInvalid] if src does not fit or the lease is a read lease; the context's error if CopyFrom had to wait.
func (l *Lease) CopyFrom(ctx context.Context, off uint64, src []byte) error {
	return l.with(ctx, off, uint64(len(src)), true, func(m mempool.Memory) error { return m.CopyFrom(off, src) })
}

// CopyTo waits until the content is complete, and then fills dst with bytes of the buffer, beginning at byte off. The end of ctx does not
// interrupt a copy that has begun.
//
// Errors: [ErrReleased], [ErrInvalid] if the buffer is too short for the copy, [ErrContentFailed] or [ErrProducerDied] if the content will
// never be complete; the context's error if CopyTo had to wait.
func (l *Lease) CopyTo(ctx context.Context, dst []byte, off uint64) error {
	return l.with(ctx, off, uint64(len(dst)), false, func(m mempool.Memory) error {
		if err := m.CopyTo(dst, off); err != nil {
			return err
		}
		return l.check(ctx)
	})
}

// Fill sets n bytes of the buffer, beginning at byte off, to the value b. It waits in the same cases as CopyFrom.
//
// Errors: those of [Lease.CopyFrom].
func (l *Lease) Fill(ctx context.Context, off, n uint64, b byte) error {
	return l.with(ctx, off, n, true, func(m mempool.Memory) error { return m.Fill(off, n, b) })
}

// Bytes waits until the buffer may be used, and returns the buffer's memory as a slice. It returns nil if the CPU cannot access the memory.
// The caller must not use the slice after the lease has ended, and must not write to the slice of a read lease.
//
// Errors: [ErrReleased]; [ErrContentFailed], [ErrProducerDied] or the context's error if Bytes had to wait for earlier work.
func (l *Lease) Bytes(ctx context.Context) (b []byte, err error) {
	err = l.with(ctx, 0, 0, false, func(m mempool.Memory) error {
		if b = m.Bytes(); b == nil {
			return nil
		}
		b = b[:l.info.Bytes:l.info.Bytes]
		return l.await(ctx, mempool.CPU)
	})
	return b, err
}

// Pointer returns the buffer's address: a CUDA device pointer for memory on a GPU. The caller must not use the address after the lease has
// ended. Pointer waits until the memory may be used. If the caller has called [Lease.WaitOn], the work in the caller's queue waits instead,
// and Pointer returns at once.
//
// Errors: [ErrReleased]; [ErrContentFailed], [ErrProducerDied] or the context's error if Pointer had to wait.
func (l *Lease) Pointer(ctx context.Context) (p uintptr, err error) {
	err = l.with(ctx, 0, 0, false, func(m mempool.Memory) error {
		p = m.Pointer()
		if o := l.order.Load(); o != nil {
			return o.AwaitAccess(ctx, m)
		}
		return nil
	})
	return p, err
}

// WaitOn makes later work in the queue wait for everything that must happen before the memory is used, and for this package's own work on
// the memory. With the queue [mempool.CPU], WaitOn itself waits. If the caller's work in the queue uses the memory, the caller must pass
// the queue when the caller ends or publishes the lease: see [Lease.ReleaseAfter] and [mempool.Completion].
//
// Errors: [ErrReleased]; if WaitOn itself waits, [ErrContentFailed], [ErrProducerDied] or the context's error.
func (l *Lease) WaitOn(ctx context.Context, q Queue) error {
	return l.with(ctx, 0, 0, false, func(m mempool.Memory) error {
		if o := l.order.Load(); o != nil {
			return o.Give(ctx, m.Queue(), q)
		}
		return nil
	})
}

// ReadyEvent returns the interprocess event that came with the content, or nil if none came. The event stays open while the lease lasts.
// The methods of the lease wait for this event where necessary. Queues that the caller passed to WaitOn wait for it, too.
//
// Errors: those of [mempool.OpenEvent]. The caller can use the lease despite the error, because the content has a fence, too.
func (l *Lease) ReadyEvent() (e *Event, err error) {
	err = l.with(context.Background(), 0, 0, false, func(mempool.Memory) error { // with waits for nothing if n is 0
		if o := l.order.Load(); o != nil {
			e, err = o.Event()
		}
		return err
	})
	return e, err
}

// Check returns an error if the client knows that the content is incomplete. On a GPU, a stream that waits for the work of a process
// continues even if that process has died or has reported that the content failed. So call Check before you trust a result, and before the
// lease ends: later, the producer may have forgotten the failure.
//
// Errors: [ErrContentFailed] with the reason of the producer, [ErrProducerDied], [ErrReleased].
func (l *Lease) Check(ctx context.Context) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.ended {
		return l.client.hasEnded(l.info)
	}
	return l.check(ctx)
}

// check does the same as Check. The caller holds l.mu.
func (l *Lease) check(ctx context.Context) error {
	var err error
	if o := l.order.Load(); o != nil {
		err = o.Check(ctx)
	}
	if l.failed.Load() && !errors.Is(err, ErrContentFailed) {
		return situation.Of(ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", l.buffer)
	}
	return err
}

// failed marks the leases on buffers whose content will never be complete.
func (c *Client) failed(buffers []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.leases.all() {
		if slices.Contains(buffers, l.buffer) {
			l.failed.Store(true)
		}
	}
}

// Publish publishes the buffer under a name. p.Completion says when the content is complete; with the zero Completion, the content is
// complete now. The lease becomes a read lease. Publish does not wait for work on the memory: a fence makes readers wait for that work.
//
// Errors: [ErrReleased], [ErrInvalid], [ErrExists], [ErrDenied].
func (l *Lease) Publish(ctx context.Context, p Publication) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.client; c.tracer != nil {
		o := &Operation{Name: OpPublish, Buffer: p.Name}
		l.describeTo(o)
		ctx = c.tracer.TraceStart(ctx, o)
		defer func() { c.tracer.TraceEnd(ctx, o, err) }()
	}
	if l.ended {
		return l.client.hasEnded(l.info)
	}
	if err := l.nameable(); err != nil {
		return err
	}
	ready, err := l.completed(ctx, p.Completion)
	if err != nil {
		return err
	}
	r := &wire.Publish{Lease: l.info.ID, Name: p.Name, Keep: p.Keep, Replace: p.Replace, Ready: convert.WireFence(ready), Event: p.Handle(ready)}
	if p.Tensor != nil {
		t := convert.WireTensor(*p.Tensor)
		r.Tensor = &t
	}
	err = l.client.session.Call(ctx, r, &wire.EmptyReply{})
	if _, refused := errors.AsType[*RemoteError](err); err != nil && refused {
		return err
	}
	info := *l.info
	l.info, l.memory = &info, nil
	info.Write = false // also if no answer came, because the service may have published the buffer
	l.unsure = err != nil
	l.ordering().Ended(ready, p.Completion)
	if err != nil {
		return err
	}
	if p.Tensor != nil {
		info.Tensor = p.Tensor.Clone()
	}
	return nil
}
