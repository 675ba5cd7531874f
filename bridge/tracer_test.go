package bridge

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

// recorder is a tracer that keeps all operations that the client reports.
type recorder struct {
	mu    sync.Mutex
	began []string // titles of the operations that have begun
	ended []endedOp
	add   map[string]string // entries that TraceStart adds to the Meta of frames
}

// endedOp is an operation that has ended, and the span of the operation's caller.
type endedOp struct {
	Operation
	err    error
	caller any
}

type spanKey struct{}

type innerKey struct{}

func (r *recorder) TraceStart(ctx context.Context, o *Operation) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = append(r.began, o.Title())
	for key, value := range r.add {
		if o.Name == OpPublish && o.Meta != nil {
			o.Meta[key] = value
		}
	}
	return context.WithValue(ctx, innerKey{}, o)
}

func (r *recorder) TraceEnd(ctx context.Context, o *Operation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Value(innerKey{}) != o {
		err = fmt.Errorf("the context of TraceEnd is not that of TraceStart: %w", err)
	}
	r.ended = append(r.ended, endedOp{*o, err, ctx.Value(spanKey{})})
}

// take returns the operations that have ended since the last call of take.
func (r *recorder) take() []endedOp {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.ended
	r.ended = nil
	return all
}

// beginning reports whether the last operation that has begun has the given title.
func (r *recorder) beginning(title string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.began) > 0 && r.began[len(r.began)-1] == title
}

// tracedPool returns a pool of a client that has a tracer.
func tracedPool(t *testing.T, tracer Tracer) *Pool {
	t.Helper()
	_, path := serve(t, server.Config{})
	c, err := Dialer{Tracer: tracer}.Dial(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return createPool(t, c, hostPool("p", 1<<20))
}

func TestATracerIsToldOfEveryOperationAndItsResults(t *testing.T) {
	r := &recorder{add: map[string]string{"traceparent": "00"}}
	p := tracedPool(t, r)
	ch := makeChannel(t, p.client, p, mempool.ChannelSpec{Capacity: 4})
	ctx := context.WithValue(t.Context(), spanKey{}, "caller")
	meta := map[string]any{"a": "b"}
	_, err := ch.Publish(ctx, allocate(t, p, 16), mempool.FrameOptions{Meta: meta})
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"a": "b"}, meta)
	both := map[string]any{"a": "b", "traceparent": "00"}
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Oldest: true}) {
		require.NoError(t, err)
		assert.Equal(t, both, f.Meta)
		require.NoError(t, f.Release())
		break
	}
	frame := Operation{Channel: "c", Pool: "p", Bytes: 16, Seq: 1}
	publish, receive, release := frame, frame, frame
	publish.Name, publish.Meta = OpPublish, both
	receive.Name, receive.Meta = OpReceive, both
	release.Name = OpRelease
	assert.Equal(t, []endedOp{{Operation: Operation{Name: OpAllocate, Pool: "p", Bytes: 16}}, {publish, nil, "caller"}, {receive, nil, "caller"},
		{release, nil, "caller"}}, r.take(), "a release without a context has that of the receipt")
}

func TestATracerIsToldOfNamesAndOfLeasesByTheirID(t *testing.T) {
	r := &recorder{}
	p := tracedPool(t, r)
	ctx := context.WithValue(t.Context(), spanKey{}, "caller")
	l := allocate(t, p, 16)
	require.NoError(t, l.Publish(ctx, mempool.Publication{Name: "x"}))
	byName, err := p.client.Get(ctx, "x", LeaseOptions{})
	require.NoError(t, err)
	byID, err := p.client.Lease(ctx, l.Grant().Buffer, l.Grant().Generation, LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, byName.Release(false))
	require.NoError(t, byID.ReleaseAfter(context.WithValue(ctx, spanKey{}, "other")))
	require.NoError(t, byID.Release(false), "again")
	of := func(name, buffer string) Operation {
		return Operation{Name: name, Pool: "p", Buffer: buffer, Bytes: 16}
	}
	all := r.take()
	require.Len(t, all, 7)
	require.NoError(t, all[6].err)
	assert.Equal(t, []endedOp{{Operation: of(OpAllocate, "")}, {of(OpPublish, "x"), nil, "caller"}, {of(OpGet, "x"), nil, "caller"},
		{of(OpLease, ""), nil, "caller"}, {of(OpRelease, ""), nil, "caller"}, {of(OpRelease, ""), nil, "other"}}, all[:6])
}

func TestATracerIsToldOfErrorsAndOfCallsThatAreInterrupted(t *testing.T) {
	r := &recorder{}
	p := tracedPool(t, r)
	_, err := p.client.Lease(t.Context(), 12345, 1, LeaseOptions{})
	require.ErrorIs(t, err, ErrStale)
	ch := makeChannel(t, p.client, p, mempool.ChannelSpec{Capacity: 4})
	ctx, cancel := context.WithCancel(t.Context())
	received := make(chan error, 1)
	go func() {
		for _, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
			received <- err
		}
	}()
	eventually(t, func() bool { return r.beginning("receive c") })
	cancel()
	require.ErrorIs(t, <-received, context.Canceled)
	all := r.take()
	require.Len(t, all, 2)
	assert.ErrorIs(t, all[0].err, ErrStale)
	assert.Equal(t, Operation{Name: OpReceive, Channel: "c"}, all[1].Operation)
	assert.ErrorIs(t, all[1].err, context.Canceled)
}

func TestAClientThatClosesTellsItsTracerOfTheLeasesThatEnd(t *testing.T) {
	r := &recorder{}
	p := tracedPool(t, r)
	allocate(t, p, 16)
	require.NoError(t, p.client.Close())
	all := r.take()
	require.Len(t, all, 2)
	assert.Equal(t, Operation{Name: OpRelease, Pool: "p", Bytes: 16}, all[1].Operation)
}

func TestAFrameIsSentWithoutWhatATracerAddsBeyondTheLimits(t *testing.T) {
	r := &recorder{add: map[string]string{"traceparent": strings.Repeat("x", 8000)}}
	p := tracedPool(t, r)
	ch := makeChannel(t, p.client, p, mempool.ChannelSpec{Capacity: 4})
	meta := map[string]any{"a": strings.Repeat("y", 1000)}
	_, err := ch.Publish(t.Context(), allocate(t, p, 16), mempool.FrameOptions{Meta: meta})
	require.NoError(t, err)
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{Oldest: true}) {
		require.NoError(t, err)
		assert.Equal(t, meta, f.Meta)
		require.NoError(t, f.Release())
		break
	}
}
