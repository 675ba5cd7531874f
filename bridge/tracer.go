package bridge

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// Tracer has the methods that a client calls when one of its operations begins or ends. The field Tracer of [Dialer] sets the tracer of a
// client. Package oteltrace, which is a separate module, makes OpenTelemetry spans of the operations. Several goroutines may call the
// methods of a tracer. A tracer must not call methods of the client's leases: some operations hold the lock of their lease while they call
// the tracer.
type Tracer interface {
	// The client calls TraceStart when an operation begins. ctx is the caller's context. The operation continues with the context that
	// TraceStart returns. TraceStart must derive this context from ctx.
	TraceStart(ctx context.Context, o *Operation) context.Context
	// The client calls TraceEnd when the operation has ended. ctx is the context that TraceStart returned. o is the same Operation, which now
	// has the results. err is the operation's error.
	TraceEnd(ctx context.Context, o *Operation, err error)
}

// These are the names of operations.
const (
	OpAllocate = "allocate" // [Pool.Allocate]
	OpPublish  = "publish"  // [Channel.Publish] and [Lease.Publish]
	OpReceive  = "receive"  // the next frame of [Channel.Frames]
	OpGet      = "get"      // [Client.Get]
	OpLease    = "lease"    // [Client.Lease]
	OpRelease  = "release"  // the end of any lease, including a frame's lease, by a call or by [Client.Close]
)

// Operation is one operation of a client. If a field is empty or 0, its value is not known yet, or the operation has no such value.
type Operation struct {
	// Name is one of the constants above, such as [OpAllocate].
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
	// Dropped is how many frames the subscriber missed before the received frame.
	Dropped uint64
	// Meta is the producer's data about a frame: when its publication begins, and when a frame with data was received; else nil. When the
	// publication begins, the tracer may add entries, but must not change the values that are there. If [mempool.FrameOptions] does not allow
	// Meta then, the frame is sent with the caller's data alone.
	Meta map[string]any
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

// tracing tells a client's tracer of the client's operations.
type tracing struct {
	tracer Tracer // nil: the client traces nothing
	blocks *session.Blocks
	traces sync.Map // maps each *session.Lease to the context in which the lease was made
}

// trace tells the tracer that an operation begins whose result is a lease. The caller has checked that the client has a tracer. When the
// operation has ended, the caller calls the returned function.
func (t *tracing) trace(ctx context.Context, o *Operation) (context.Context, func(*Lease, error)) {
	inner := t.tracer.TraceStart(ctx, o)
	return inner, func(l *Lease, err error) {
		if l != nil {
			t.traced(ctx, o, &l.held)
		}
		t.tracer.TraceEnd(inner, o, err)
	}
}

// traced notes in an operation which lease the operation made, and keeps ctx for the release of the lease.
func (t *tracing) traced(ctx context.Context, o *Operation, l *session.Lease) {
	t.describe(o, l)
	t.traces.Store(l, context.WithoutCancel(ctx))
}

// describe notes in an operation the size and the pool of the lease's buffer.
func (t *tracing) describe(o *Operation, l *session.Lease) {
	info := l.Info()
	o.Bytes = info.Bytes
	if p := t.blocks.Find(info.Pool); p != nil && o.Pool == "" {
		o.Pool = p.Info.Name
	}
}

// traceSend tells the tracer that the client begins to publish a lease as a frame. It replaces the frame's Meta with a copy, so that the
// tracer can add entries.
func (l *Lease) traceSend(ctx context.Context, channel string, f *mempool.FrameOptions) (context.Context, func(uint64, error)) {
	c := l.client
	o := &Operation{Name: OpPublish, Channel: channel, Meta: maps.Clone(f.Meta)}
	if o.Meta == nil {
		o.Meta = make(map[string]any)
	}
	c.describe(o, &l.held)
	ctx = c.tracer.TraceStart(ctx, o)
	if _, err := shmchannel.AppendMeta(nil, o.Meta); err == nil {
		f.Meta = o.Meta
	}
	return ctx, func(number uint64, err error) {
		o.Seq = number
		if l.held.Ended() {
			c.traces.Delete(&l.held)
		}
		c.tracer.TraceEnd(ctx, o, err)
	}
}

// traceReceive starts the operation that receives a frame.
func (s *subscription) traceReceive(ctx context.Context) (context.Context, func(*Frame, error)) {
	c := s.client
	o := &Operation{Name: OpReceive, Channel: s.Channel().Name}
	inner := c.tracer.TraceStart(ctx, o)
	return inner, func(f *Frame, err error) {
		if f != nil {
			o.Seq, o.Dropped, o.Meta = f.Seq, f.Dropped, f.Meta
			if f.Lease != nil {
				c.traced(ctx, o, &f.Lease.held)
			}
		}
		c.tracer.TraceEnd(inner, o, err)
	}
}

// traceRelease ends a lease, and tells the tracer. If the caller has no context, the tracer gets the context of the operation that made the lease.
func (t *tracing) traceRelease(ctx context.Context, l *session.Lease, incomplete bool, after ...mempool.Queue) (err error) {
	if t.tracer != nil {
		o, traced := t.startRelease(ctx, l)
		defer func() { t.tracer.TraceEnd(traced, o, err) }()
	}
	if err = l.Release(ctx, incomplete, after...); errors.Is(err, ErrReleased) && !errors.Is(err, ErrDisconnected) {
		return nil // it has ended before
	}
	return err
}

func (t *tracing) startRelease(ctx context.Context, l *session.Lease) (*Operation, context.Context) {
	o := &Operation{Name: OpRelease}
	if h, ok := l.Holder().(*stream.Hand); ok {
		o.Channel, o.Seq = h.Channel().Name, h.Number()
	}
	t.describe(o, l)
	made, ok := t.traces.LoadAndDelete(l)
	switch {
	case ctx != session.Unasked:
	case ok:
		ctx = made.(context.Context)
	default:
		ctx = context.Background()
	}
	return o, t.tracer.TraceStart(ctx, o)
}
