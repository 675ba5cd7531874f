package bridge

import (
	"context"
	"maps"

	"github.com/poolbridge/poolbridge/mempool"
)

// Tracer gets the operations of a client. The client's [Dialer] names the tracer. Package oteltrace, a module of its own, makes
// OpenTelemetry spans of them. Several goroutines may call the methods of a tracer.
// A tracer must not call methods of the client's leases: some operations hold the lock of their lease while they call the tracer.
type Tracer interface {
	// TraceStart is called when an operation begins, with the caller's context. The operation goes on with the context that TraceStart
	// returns, which must be derived from ctx.
	TraceStart(ctx context.Context, o *Operation) context.Context
	// TraceEnd is called when the operation has ended, with the context that TraceStart returned and the same Operation, which has the
	// results now. err is the operation's error.
	TraceEnd(ctx context.Context, o *Operation, err error)
}

// The names of operations.
const (
	OpAllocate = "allocate" // [Pool.Allocate]
	OpPublish  = "publish"  // [Channel.Publish] and [Lease.Publish]
	OpReceive  = "receive"  // the next frame of [Channel.Frames]
	OpGet      = "get"      // [Client.Get]
	OpLease    = "lease"    // [Client.Lease]
	OpRelease  = "release"  // the end of a lease, a frame's too, by a call or by [Client.Close]
)

// Operation is one operation of a client. An empty field or a field of 0 is not known yet, or the operation has no such value.
type Operation struct {
	// Name is one of the names above.
	Name string
	// Channel is the name of the channel.
	Channel string
	// Pool is the name of the buffer's pool.
	Pool string
	// Buffer is the name under which the buffer is published.
	Buffer string
	// Bytes is the number of bytes of the buffer.
	Bytes uint64
	// Seq is the frame's number in its channel.
	Seq uint64
	// Dropped is how many frames were missed before a frame that was received.
	Dropped uint64
	// Meta is the sender's data about a frame; nil if the operation is not about a frame. A tracer may add entries to a frame that is
	// about to be published, within the limits of [mempool.FrameOptions].
	Meta map[string]string
}

// Title returns the operation's name with the name of its channel or pool, such as "publish camera".
func (o *Operation) Title() string {
	switch {
	case o.Channel != "":
		return o.Name + " " + o.Channel
	case o.Pool != "":
		return o.Name + " " + o.Pool
	}
	return o.Name
}

// trace starts an operation that ends with a lease. The caller has checked that there is a tracer.
func (c *Client) trace(ctx context.Context, o *Operation) (context.Context, func(*Lease, error)) {
	inner := c.tracer.TraceStart(ctx, o)
	return inner, func(l *Lease, err error) {
		if l != nil {
			l.traced(ctx, o)
		}
		c.tracer.TraceEnd(inner, o, err)
	}
}

// traced notes in an operation which lease it made, and keeps ctx for the release of the lease.
func (l *Lease) traced(ctx context.Context, o *Operation) {
	l.describeTo(o)
	l.client.traces.Store(l, context.WithoutCancel(ctx))
}

// describeTo notes in an operation which lease it is about.
func (l *Lease) describeTo(o *Operation) {
	c := l.client
	o.Bytes = l.info.Bytes
	if o.Pool == "" {
		c.mu.Lock()
		if p := c.pools[l.info.Pool]; p != nil {
			o.Pool = p.info.Name
		}
		c.mu.Unlock()
	}
}

// traceSend starts the publication of a lease as a frame. It replaces the frame's Meta with a copy, for the tracer to add to.
func (l *Lease) traceSend(ctx context.Context, ch *Channel, f *mempool.FrameOptions) (context.Context, func(uint64, error)) {
	o := &Operation{Name: OpPublish, Channel: ch.info.Name, Meta: maps.Clone(f.Meta)}
	if o.Meta == nil {
		o.Meta = make(map[string]string)
	}
	l.describeTo(o)
	ctx = l.client.tracer.TraceStart(ctx, o)
	f.Meta = o.Meta
	return ctx, func(number uint64, err error) {
		o.Seq = number
		if l.ended {
			l.client.traces.Delete(l)
		}
		l.client.tracer.TraceEnd(ctx, o, err)
	}
}

// traceReceive starts the receipt of a frame.
func (s *consuming) traceReceive(ctx context.Context) (context.Context, func(*Frame, error)) {
	o := &Operation{Name: OpReceive, Channel: s.channel.Name}
	inner := s.client.tracer.TraceStart(ctx, o)
	return inner, func(f *Frame, err error) {
		if f != nil {
			o.Seq, o.Dropped, o.Meta = f.Seq, f.Dropped, f.Meta
			if f.Lease != nil {
				f.Lease.traced(ctx, o)
			}
		}
		s.client.tracer.TraceEnd(inner, o, err)
	}
}

// traceRelease starts the release of a lease. If the caller has no context, traceRelease uses the context of the operation that made the
// lease. The caller holds l.mu.
func (l *Lease) traceRelease(ctx context.Context) func(error) {
	c := l.client
	o := &Operation{Name: OpRelease}
	if t := l.taken; t != nil {
		o.Channel, o.Seq = t.by.channel.Name, t.hand.Number
	}
	l.describeTo(o)
	made, ok := c.traces.LoadAndDelete(l)
	switch {
	case ctx != unasked:
	case ok:
		ctx = made.(context.Context)
	default:
		ctx = context.Background()
	}
	ctx = c.tracer.TraceStart(ctx, o)
	return func(err error) { c.tracer.TraceEnd(ctx, o, err) }
}
