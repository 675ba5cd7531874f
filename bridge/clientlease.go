package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is this client's hold on a buffer, mapped in this process.
type Lease struct {
	client *Client

	prev, next *Lease // in Client.leases
	buffer     uint64 // of info, which may be exchanged; it is known from when the lease is in that list

	mu     sync.RWMutex       // held to read while the memory is touched
	info   *mempool.LeaseInfo // which other leases of the buffer may have, too: it is not changed
	mem    *mempool.ImportedBlock
	memory mempool.Memory // mem as the lease may use it; nil: mem is asked
	ended  bool

	order  atomic.Pointer[mempool.Order] // nil: there is nothing to wait for, nor does this package work on the memory
	failed atomic.Bool                   // the writer of the content died before it was complete

	taken  *taken // the frame that it came with; the service has no such lease
	reused bool   // its buffer came back through a channel: the service does not know all that must be waited for
	own    bool   // Allocate made it, and its buffer has had no name: when it comes back Allocate may make it again
	loan   *loan  // of a lease that is reused: what it was made of
}

// LeaseOptions says how to lease a buffer that exists.
type LeaseOptions struct {
	// Write asks for a write lease, which excludes every other.
	Write bool
	// Wait is how long to wait for the name to appear and for leases that exclude this one to end.
	Wait time.Duration
}

// Get leases the buffer that is published under a name.
//
// Errors: [ErrNotFound] (with no wait) or [ErrTimeout], [ErrBusy], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Get(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	return c.lease(ctx, &wire.Get{Name: name, Write: o.Write, Wait: wireWait(o.Wait)})
}

// Lease leases a buffer by its id and generation.
//
// Errors: [ErrNotFound], [ErrStale], [ErrBusy], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Lease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	return c.lease(ctx, &wire.LeaseBuffer{Buffer: buffer, Generation: generation, Write: o.Write, Wait: wireWait(o.Wait)})
}

func (c *Client) lease(ctx context.Context, r wire.Request) (*Lease, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var reply wire.LeaseReply
	err := c.call(ctx, r, &call{into: &reply,
		files: func(fds *seqpacket.FDs) { c.arrived(reply.Lease, fds) },
		undo:  func() { _ = (&Lease{client: c, info: leaseOf(reply.Lease)}).end(false) }})
	if err != nil {
		return nil, err
	}
	l, err := c.adopt(ctx, reply.Lease)
	if err != nil {
		return nil, errors.Join(err, l.end(false))
	}
	return l, nil
}

// adopt maps the memory of a lease that arrived. The caller has entered, and ends the lease where an error says that it
// cannot be mapped.
func (c *Client) adopt(ctx context.Context, came wire.Lease) (*Lease, error) {
	l := &Lease{client: c, info: leaseOf(came)}
	if len(l.info.Wait) > 0 {
		l.ordering().Begin(l.info.Wait, !came.Write)
	}
	p, err := c.pool(ctx, came.Pool)
	if err == nil {
		if came.Event != nil {
			l.ordering().Expect(came.Event, came.EventOnly, p.info.Device.UUID)
		}
		l.mem, l.memory, err = c.mapped(p, came)
	}
	for _, t := range l.info.Wait { // while there is a context, and before it is urgent
		if err == nil {
			_, err = c.page(ctx, t.Timeline)
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
		return l, errClientClosed
	}
	return l, nil
}

// enter counts a caller that makes a lease; Close waits for it to leave.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errClientClosed
	}
	c.busy++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle()
}

// Info describes the lease.
func (l *Lease) Info() mempool.LeaseInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	info := *l.info
	info.Tensor = info.Tensor.Clone()
	return info
}

// Tensor describes what the buffer holds.
func (l *Lease) Tensor() mempool.Tensor { return l.Info().Tensor }

// hasEnded is the error of a call on a lease that has ended. It also says why no lease of the client works any more, if that is so.
func (c *Client) hasEnded(info *mempool.LeaseInfo) error {
	err := situation.Of(ErrReleased, "lease %d, of %s%v, has ended", info.ID, info.Tensor.DType, info.Tensor.Shape)
	if why := context.Cause(c.working); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// with calls f with the buffer's memory, which stays mapped meanwhile.
func (l *Lease) with(ctx context.Context, off, n uint64, write bool, f func(mempool.Memory) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.ended:
		return l.client.hasEnded(l.info)
	case write && !l.info.Write:
		return situation.Of(ErrInvalid, "lease %d was granted to read; ask for a write lease", l.info.ID)
	case off > l.info.Bytes || n > l.info.Bytes-off:
		return situation.Of(ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, l.info.Bytes)
	}
	m, err := l.reach()
	if err != nil {
		return err
	}
	if n > 0 { // else who asks says how it waits
		if err := l.await(ctx, m.Queue()); err != nil {
			return err
		}
	}
	if write && m.Queue() != mempool.CPU {
		if _, err := l.client.Clock(ctx); err != nil && ctx.Err() != nil { // so that Release need not ask for it
			return err
		}
		l.ordering().Use()
	}
	return f(m)
}

// reach is the memory as the lease may use it. l.mu is held.
func (l *Lease) reach() (mempool.Memory, error) {
	if l.memory != nil {
		return l.memory, nil
	}
	return l.mem.Memory(l.info.Write)
}

// ordering is the lease's order, made if need be.
func (l *Lease) ordering() *mempool.Order {
	if l.order.Load() == nil {
		l.order.CompareAndSwap(nil, &mempool.Order{Pages: l.client.order.pages, Clock: l.client.order.clock})
	}
	return l.order.Load()
}

// await makes what comes next in the queue come after what must be waited for.
func (l *Lease) await(ctx context.Context, q mempool.Queue) error {
	if o := l.order.Load(); o != nil {
		return o.Before(ctx, q)
	}
	return nil
}

// endOrder ends the use of the memory.
func (l *Lease) endOrder() error {
	if o := l.order.Load(); o != nil {
		return o.Close()
	}
	return nil
}

// CopyFrom copies src to the buffer at off bytes. On a GPU it comes after all that must happen before, without a wait here; on the CPU that is
// waited for, and what is begun is not broken off.
//
// Errors: [ErrReleased], [ErrInvalid] if src does not fit or the lease was granted to read; [ErrTimeout] and ctx's from waiting.
func (l *Lease) CopyFrom(ctx context.Context, off uint64, src []byte) error {
	return l.with(ctx, off, uint64(len(src)), true, func(m mempool.Memory) error { return m.CopyFrom(off, src) })
}

// CopyTo fills dst from the buffer at off bytes, once the content is complete. A copy that has begun is not broken off.
//
// Errors: [ErrReleased], [ErrInvalid] if the buffer has not that many bytes, [ErrProducerDied] if its content was not
// complete; [ErrTimeout] and ctx's from waiting.
func (l *Lease) CopyTo(ctx context.Context, dst []byte, off uint64) error {
	return l.with(ctx, off, uint64(len(dst)), false, func(m mempool.Memory) error {
		if err := m.CopyTo(dst, off); err != nil {
			return err
		}
		return l.Check(ctx)
	})
}

// Fill sets n bytes at off to b. It waits as CopyFrom does.
//
// Errors: those of [Lease.CopyFrom].
func (l *Lease) Fill(ctx context.Context, off, n uint64, b byte) error {
	return l.with(ctx, off, n, true, func(m mempool.Memory) error { return m.Fill(off, n, b) })
}

// Bytes is the buffer as the CPU sees it, nil where it cannot reach it, once it may be touched. It must not be touched
// once the lease has ended, nor written through a read lease.
//
// Errors: [ErrReleased]; [ErrTimeout], [ErrProducerDied] and ctx's from waiting for who works on it.
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

// Pointer is the buffer's address: a CUDA device pointer for memory on a GPU. It must not be used once the lease has
// ended. Unless a queue was made to wait for what must happen first ([Lease.WaitOn]), this waits for it.
//
// Errors: [ErrReleased]; [ErrTimeout], [ErrProducerDied] and ctx's from waiting.
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

// WaitOn makes what comes next in a queue come after all that must happen before the memory is used, and after what this
// package did with it; on [mempool.CPU] it waits. What the queue does with the memory is named when the lease ends: see [Lease.ReleaseAfter] and
// [mempool.Completion].
//
// Errors: [ErrReleased]; from queues that wait here, [ErrTimeout], [ErrProducerDied] and ctx's.
func (l *Lease) WaitOn(ctx context.Context, q mempool.Queue) error {
	return l.with(ctx, 0, 0, false, func(m mempool.Memory) error {
		if o := l.order.Load(); o != nil {
			return o.Give(ctx, m.Queue(), q)
		}
		return nil
	})
}

// ReadyEvent is the interprocess event that came with the content, opened for as long as the lease lasts; nil if none did.
// What the lease does itself, and queues that WaitOn was told of, wait for it where they have to.
//
// Errors: as [mempool.OpenEvent]. What has a fence besides can be used all the same.
func (l *Lease) ReadyEvent() (e *mempool.Event, err error) {
	err = l.with(context.Background(), 0, 0, false, func(mempool.Memory) error { // nothing is waited for
		if o := l.order.Load(); o != nil {
			e, err = o.Event()
		}
		return err
	})
	return e, err
}

// Check says whether the content is known not to have been finished. On a GPU a wait ends too when the process that it was
// for has died: look before you trust what came out.
//
// Errors: [ErrProducerDied].
func (l *Lease) Check(ctx context.Context) error {
	if l.failed.Load() {
		return situation.Of(ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", l.buffer)
	}
	if o := l.order.Load(); o != nil {
		return o.Check(ctx)
	}
	return nil
}

// failed notes which buffers will never be complete.
func (c *Client) failed(buffers []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.leases.all() {
		if slices.Contains(buffers, l.buffer) {
			l.failed.Store(true)
		}
	}
}

// Publish says that the content is complete, or will be when p says: others find the buffer under the name, and the lease
// becomes a read lease. It waits for no work: readers come after it.
//
// Errors: [ErrReleased], [ErrInvalid], [ErrExists], [ErrDenied].
func (l *Lease) Publish(ctx context.Context, p mempool.Publication) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return l.client.hasEnded(l.info)
	}
	if err := l.hand(ctx); err != nil {
		return err
	}
	ready, err := l.completed(ctx, p.Completion)
	if err != nil {
		return err
	}
	r := &wire.Publish{Lease: l.info.ID, Name: p.Name, Keep: p.Keep, Replace: p.Replace, Ready: wireFence(ready), Event: p.Handle(ready)}
	if p.Tensor != nil {
		t := wireTensor(*p.Tensor)
		r.Tensor = &t
	}
	err = l.client.call(ctx, r, &call{into: &wire.EmptyReply{}})
	if _, refused := errors.AsType[*RemoteError](err); err != nil && refused {
		return err
	}
	l.own = false
	info := *l.info
	l.info, l.memory = &info, nil
	info.Write = false // as far as anybody knows, where no answer came
	l.ordering().Ended(ready, p.Completion)
	if err != nil {
		return err
	}
	if p.Tensor != nil {
		info.Tensor = p.Tensor.Clone()
	}
	return nil
}
