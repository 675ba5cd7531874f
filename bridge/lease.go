package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is a client's right to use a buffer. The buffer's memory is mapped in the client's process.
type Lease struct {
	client *Client
	held   session.Lease
}

// LeaseOptions says how to lease an existing buffer.
type LeaseOptions struct {
	// Write asks for a write lease, which excludes all other leases.
	Write bool
	// OtherThan is a lease of the same name. If it is not nil, the call waits until the name refers to another publication, such as a newer
	// version of a model, whose content has not failed. Its lease may have ended. [Client.Lease] does not use it.
	OtherThan *Lease
	// Expect is metadata that the buffer must have, such as the model and its revision; see [Tensor]. The buffer may have more. If it has not,
	// the call fails with [ErrMetadataMismatch], and does not wait for another buffer.
	Expect map[string]string
}

func (o LeaseOptions) get(c *Client, name string) (*wire.Get, error) {
	r := &wire.Get{Name: name, Write: o.Write}
	if o.OtherThan == nil {
		return r, nil
	}
	if o.OtherThan.Version() == 0 {
		return nil, fmt.Errorf("%w: OtherThan is %v, which has no name: pass a lease from Get or one that was published", ErrInvalid, o.OtherThan)
	}
	r.Buffer, r.Version = o.OtherThan.held.Known(c.session)
	return r, nil
}

// Get leases the buffer that is published under a name. Get waits until the name exists, and until all leases that exclude the new lease
// have ended. A program that follows a name gets each newest version in turn: see [LeaseOptions.OtherThan].
//
// Errors: [ErrNotFound] or [ErrBusy] at the deadline, [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable],
// [ErrMetadataMismatch]; [ErrInvalid] if o.OtherThan has no name.
func (c *Client) Get(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	r, err := o.get(c, name)
	if err != nil {
		return nil, err
	}
	return c.obtain(ctx, session.Waiting, Operation{Name: OpGet, Buffer: name}, r, &r.Wait, o.Expect)
}

// TryGet is like [Client.Get], but does not wait.
//
// Errors: [ErrNotFound], [ErrBusy], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable], [ErrMetadataMismatch];
// [ErrInvalid] as for Get.
func (c *Client) TryGet(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	r, err := o.get(c, name)
	if err != nil {
		return nil, err
	}
	return c.obtain(ctx, session.Once, Operation{Name: OpGet, Buffer: name}, r, &r.Wait, o.Expect)
}

// Lease leases a buffer by its id and generation. It waits until all leases that exclude the new lease have ended.
//
// Errors: [ErrBusy] at the deadline, [ErrStale], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable], [ErrMetadataMismatch].
func (c *Client) Lease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	r := &wire.LeaseBuffer{Buffer: buffer, Generation: generation, Write: o.Write}
	return c.obtain(ctx, session.Waiting, Operation{Name: OpLease}, r, &r.Wait, o.Expect)
}

// TryLease is like [Client.Lease], but does not wait.
//
// Errors: [ErrBusy], [ErrStale], [ErrContentFailed], [ErrProducerDied], [ErrDenied], [ErrUnavailable], [ErrMetadataMismatch].
func (c *Client) TryLease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	r := &wire.LeaseBuffer{Buffer: buffer, Generation: generation, Write: o.Write}
	return c.obtain(ctx, session.Once, Operation{Name: OpLease}, r, &r.Wait, o.Expect)
}

// obtain asks the service for a lease. `limit` points to the request's field for the time limit. `expect` is metadata that the buffer must have.
func (c *Client) obtain(ctx context.Context, try session.Attempt, o Operation, r wire.Request, limit *uint64, expect map[string]string) (l *Lease, err error) {
	if c.tracer != nil {
		var end func(*Lease, error)
		traced := o
		ctx, end = c.trace(ctx, &traced)
		defer func() { end(l, err) }()
	}
	made := &Lease{client: c}
	if err := c.session.Blocks.Obtain(ctx, &made.held, try, r, limit); err != nil {
		return nil, err
	}
	if err := cmp.Or(made.held.ReadLayout(ctx), made.expect(expect)); err != nil {
		return nil, errors.Join(err, made.Release(false))
	}
	return made, nil
}

// expect returns an error if the buffer has not the metadata.
func (l *Lease) expect(metadata map[string]string) error {
	has := l.held.Info().Tensor.Metadata
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch found, ok := has[key]; {
		case !ok:
			return fmt.Errorf("%w: expected %q to be %.100q, found none", ErrMetadataMismatch, key, metadata[key])
		case found != metadata[key]:
			return fmt.Errorf("%w: expected %q to be %.100q, found %.100q", ErrMetadataMismatch, key, metadata[key], found)
		}
	}
	return nil
}

// Grant returns the description of the lease.
func (l *Lease) Grant() Grant {
	info := *l.held.Info()
	info.Tensor = info.Tensor.Clone()
	return info
}

// String describes the lease for people.
func (l *Lease) String() string {
	g, state := l.Grant(), "read"
	if g.Write {
		state = "write"
	}
	if l.held.Ended() {
		state = "released"
	}
	return fmt.Sprintf("lease %d: %s%v, %d bytes, %s", g.ID, g.Tensor.DType, g.Tensor.Shape, g.Bytes, state)
}

// Version returns the version of the content of the name with which the program got the lease, or under which it published the lease. It
// grows with each publication under the name. 0 means that the lease has no name.
func (l *Lease) Version() uint64 { return l.held.Version() }

// Tensor returns the description of the buffer's content.
func (l *Lease) Tensor() Tensor { return l.Grant().Tensor }

// CopyFrom copies src into the buffer, beginning at byte off. On a GPU, CopyFrom queues the copy behind the earlier work that must end
// before the memory is written, and does not wait. On the CPU, CopyFrom waits for this earlier work and then copies. The end of ctx does
// not interrupt a copy that has begun.
//
// Errors: [ErrReleased], [ErrInvalid] if src does not fit or the lease is a read lease; the context's error if CopyFrom had to wait.
func (l *Lease) CopyFrom(ctx context.Context, off uint64, src []byte) error {
	return l.held.With(ctx, off, uint64(len(src)), true, func(m mempool.Memory) error { return m.CopyFrom(off, src) })
}

// Upload waits until the memory may be written, and for this package's own work on the memory. Then it returns an [Upload], with which several
// goroutines fill the buffer together, through at most `pieces` pieces of page-locked memory of `size` bytes. The caller must close the Upload before
// the lease ends or the buffer is published. When Close has returned, all copies are done.
//
// Errors: [ErrReleased]; [ErrInvalid] if the lease is a read lease, and those of [mempool.NewUpload]; the context's error if Upload had to wait.
func (l *Lease) Upload(ctx context.Context, size uint64, pieces int) (u *Upload, err error) {
	err = l.held.With(ctx, 0, 0, true, func(m mempool.Memory) error {
		if o := l.held.Order(); o != nil {
			if err := o.Give(ctx, m.Queue(), mempool.CPU); err != nil {
				return err
			}
		}
		u, err = mempool.NewUpload(m, l.held.InfoLocked().Bytes, size, pieces)
		return err
	})
	return u, err
}

// CopyTo waits until the content is complete, and then fills dst with bytes of the buffer, beginning at byte off. The end of ctx does not
// interrupt a copy that has begun.
//
// Errors: [ErrReleased], [ErrInvalid] if the buffer is too short for the copy, [ErrContentFailed] or [ErrProducerDied] if the content will
// never be complete; the context's error if CopyTo had to wait.
func (l *Lease) CopyTo(ctx context.Context, dst []byte, off uint64) error {
	return l.held.With(ctx, off, uint64(len(dst)), false, func(m mempool.Memory) error {
		if err := m.CopyTo(dst, off); err != nil {
			return err
		}
		return l.held.CheckLocked(ctx)
	})
}

// Fill sets n bytes of the buffer, beginning at byte off, to the value b. It waits in the same cases as CopyFrom.
//
// Errors: those of [Lease.CopyFrom].
func (l *Lease) Fill(ctx context.Context, off, n uint64, b byte) error {
	return l.held.With(ctx, off, n, true, func(m mempool.Memory) error { return m.Fill(off, n, b) })
}

// Bytes waits until the buffer may be used, and returns the buffer's memory as a slice. It returns nil if the CPU cannot access the memory.
// The caller must not use the slice after the lease has ended, and must not write to the slice of a read lease.
//
// Errors: [ErrReleased]; [ErrContentFailed], [ErrProducerDied] or the context's error if Bytes had to wait for earlier work.
func (l *Lease) Bytes(ctx context.Context) (b []byte, err error) {
	err = l.held.With(ctx, 0, 0, false, func(m mempool.Memory) error {
		if b = m.Bytes(); b == nil {
			return nil
		}
		n := l.held.InfoLocked().Bytes
		b = b[:n:n]
		if o := l.held.Order(); o != nil {
			return o.Before(ctx, mempool.CPU)
		}
		return nil
	})
	return b, err
}

// Pointer returns the buffer's address: a CUDA device pointer for memory on a GPU. The caller must not use the address after the lease has
// ended. Pointer waits until the memory may be used. If the caller has called [Lease.WaitOn], the work in the caller's queue waits instead,
// and Pointer returns at once.
//
// Errors: [ErrReleased]; [ErrContentFailed], [ErrProducerDied] or the context's error if Pointer had to wait.
func (l *Lease) Pointer(ctx context.Context) (p uintptr, err error) {
	err = l.held.With(ctx, 0, 0, false, func(m mempool.Memory) error {
		p = m.Pointer()
		if o := l.held.Order(); o != nil {
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
	return l.held.With(ctx, 0, 0, false, func(m mempool.Memory) error {
		if o := l.held.Order(); o != nil {
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
	err = l.held.With(context.Background(), 0, 0, false, func(mempool.Memory) error { // With waits for nothing if n is 0
		if o := l.held.Order(); o != nil {
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
func (l *Lease) Check(ctx context.Context) error { return l.held.Check(ctx) }

// Publish publishes the buffer under a name. p.Completion says when the content is complete; with the zero Completion, the content is
// complete now. The lease becomes a read lease. Publish does not wait for work on the memory: a fence makes readers wait for that work.
//
// Errors: [ErrReleased], [ErrInvalid], [ErrExists], [ErrDenied].
func (l *Lease) Publish(ctx context.Context, p Publication) (err error) {
	if c := l.client; c.tracer != nil {
		o := &Operation{Name: OpPublish, Buffer: p.Name}
		c.describe(o, &l.held)
		ctx = c.tracer.TraceStart(ctx, o)
		defer func() { c.tracer.TraceEnd(ctx, o, err) }()
	}
	return l.held.Publish(ctx, p)
}

// Release ends the lease. If incomplete is true, the content of a write lease is not complete, and the buffer has failed. Release does not
// wait for an answer of the service. If the streams of the GPU can write words of a timeline, Release does not wait for GPU work: the next
// user of the memory waits for this package's work instead. Release waits for other running calls on the lease.
//
// A lease that has ended, by Release or because its frame was published, stays so: Release does nothing. So Release can be deferred:
//
//	defer func() { err = errors.Join(err, lease.Release(err != nil)) }()
//
// Errors: [ErrDisconnected] if the connection was lost, and with it the lease.
func (l *Lease) Release(incomplete bool) error {
	return l.client.traceRelease(session.Unasked, &l.held, incomplete)
}

// ReleaseAfter is like [Lease.Release], for memory that queues of the caller still use: the next user of the memory waits for the present
// work of these queues; of 16 queues or more, the first queue waits for the others. If the client has no timeline of its own yet, ReleaseAfter
// asks the service for the timeline. If ctx ends before the service answers, or if no fence can be made, ReleaseAfter waits for the work of the
// queues instead.
//
// Errors: those of Release.
func (l *Lease) ReleaseAfter(ctx context.Context, queues ...Queue) error {
	return l.client.traceRelease(ctx, &l.held, false, queues...)
}
