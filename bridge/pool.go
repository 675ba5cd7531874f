package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Pool is a pool of the service, open in a [Client].
type Pool struct {
	client *Client
	opened *session.Pool
}

// Info returns the description of the pool. The ordinal of the pool's device is the number that the device has in the service's process.
// The UUID of the device is the same in every process.
func (p *Pool) Info() PoolInfo { return p.opened.Info }

// String describes the pool for people.
func (p *Pool) String() string {
	return fmt.Sprintf("pool %q of kind %s, at most %d bytes", p.Info().Name, p.Info().Kind, p.Info().MaxBytes)
}

// CreatePool makes a pool and opens it. If this process cannot open the pool, CreatePool destroys the pool. If ctx ends, there may be a pool:
// [Client.EnsurePool] opens it.
//
// Errors: [ErrInvalid], [ErrDenied], [ErrExists], [ErrUnavailable] if the service's machine cannot make the pool, [ErrOutOfMemory].
func (c *Client) CreatePool(ctx context.Context, spec PoolSpec) (*Pool, error) {
	r, err := createRequest(spec)
	if err != nil {
		return nil, err
	}
	return c.open(ctx, session.Once, r, nil)
}

// EnsurePool makes a pool, or opens the existing pool of this name if all its settings are those of spec, also the users and groups of the
// access list. An empty access list means: only the user of this process. If the service is still making the pool, EnsurePool waits. If this
// process cannot open the pool, EnsurePool does not destroy it: other clients may use it.
//
// Errors: those of [Client.CreatePool]. [ErrExists] says how the existing pool differs, or that the name belongs to a pool that this client
// may not see. [ErrDenied] if this client sees the pool but may not use it.
func (c *Client) EnsurePool(ctx context.Context, spec PoolSpec) (*Pool, error) {
	r, err := createRequest(spec)
	if err != nil {
		return nil, err
	}
	r.Ensure = true
	return c.open(ctx, session.Once, r, nil)
}

func createRequest(spec mempool.PoolSpec) (*wire.Create, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return &wire.Create{Name: spec.Name, Kind: string(spec.Kind), Device: spec.Device, MaxBytes: spec.MaxBytes,
		MaxSessionBytes: spec.SessionBytes, MaxUserBytes: spec.UserBytes,
		UIDs: widen(spec.Access.UIDs), GIDs: widen(spec.Access.GIDs)}, nil
}

func widen(ids []uint32) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = uint64(id)
	}
	return out
}

// OpenPool opens a pool by name. It waits until the pool exists, and until the service has finished making the pool.
//
// Errors: [ErrNotFound] at the deadline, [ErrDenied], [ErrUnavailable] if this process cannot use the pool's device.
func (c *Client) OpenPool(ctx context.Context, name string) (*Pool, error) {
	r := &wire.Open{Name: name}
	return c.open(ctx, session.Waiting, r, &r.Wait)
}

// TryOpenPool is like [Client.OpenPool], but waits only if the service is still making the pool.
//
// Errors: [ErrNotFound], [ErrDenied], [ErrUnavailable] if this process cannot use the pool's device.
func (c *Client) TryOpenPool(ctx context.Context, name string) (*Pool, error) {
	return c.open(ctx, session.Once, &wire.Open{Name: name}, nil)
}

// open is like [session.Blocks.Open]. All calls return one Pool for a pool that is open.
func (c *Client) open(ctx context.Context, try session.Attempt, r wire.Request, limit *uint64) (*Pool, error) {
	opened, err := c.session.Blocks.Open(ctx, try, r, limit)
	if err != nil {
		return nil, err
	}
	one, _ := c.pools.LoadOrStore(opened, &Pool{client: c, opened: opened})
	return one.(*Pool), nil
}

// Allocate makes a buffer for a tensor and returns a write lease on it. Allocate waits until the pool has room for the buffer. If a lease on
// a buffer for an equal tensor was published as a frame and has come back from the channel, Allocate returns a lease on this buffer.
//
// For a Tensor of several arrays, such as [Pack] makes, the client writes a layout behind the arrays. A client that leases the buffer reads
// there which arrays it has.
//
// Errors: [ErrLimit] or [ErrOutOfMemory] at the deadline, or at once if the pool can never have room; [ErrInvalid], [ErrClosed].
func (p *Pool) Allocate(ctx context.Context, t Tensor) (*Lease, error) {
	return p.allocate(ctx, session.Waiting, t)
}

// TryAllocate is like [Pool.Allocate], but does not wait for leases to end. But TryAllocate may wait some seconds for blocks that the
// service is already recalling or freeing.
//
// Errors: [ErrLimit] or [ErrOutOfMemory] if there is no room, [ErrInvalid], [ErrClosed].
func (p *Pool) TryAllocate(ctx context.Context, t Tensor) (*Lease, error) {
	return p.allocate(ctx, session.Once, t)
}

func (p *Pool) allocate(ctx context.Context, try session.Attempt, t mempool.Tensor) (l *Lease, err error) {
	c := p.client
	if c.tracer != nil {
		var end func(*Lease, error)
		ctx, end = c.trace(ctx, &Operation{Name: OpAllocate, Pool: p.opened.Info.Name})
		defer func() { end(l, err) }()
	}
	t, layout, err := session.WithLayout(t)
	if err != nil {
		return nil, err
	}
	made := &Lease{client: c}
	if err := c.streams.Allocate(ctx, &made.held, try, p.opened, t); err != nil {
		return nil, err
	}
	if err := made.held.WriteLayout(ctx, t, layout); err != nil {
		return nil, errors.Join(err, made.Release(true))
	}
	return made, nil
}

// Trim frees unused blocks until the pool caches at most `keep` bytes. Trim returns the number of bytes that the service freed at once. If
// clients still map a block, the service recalls the block and frees it later. When Trim returns, this client has unmapped the recalled
// blocks, except those on which its work is still under way.
func (p *Pool) Trim(ctx context.Context, keep uint64) (uint64, error) {
	p.client.streams.GiveBack(p.opened.Info.ID)
	var reply wire.TrimReply
	if err := p.client.session.Call(ctx, &wire.Trim{Pool: p.opened.Info.ID, Keep: keep}, &reply); err != nil {
		return 0, err // do not read reply: the receiving goroutine may still write it
	}
	p.client.session.AwaitTasks(ctx) // the service has recalled blocks before the reply
	return reply.Bytes, nil
}

// Destroy ends the pool. Nobody can allocate in the pool any more, and the service removes the pool's names at once. The service frees the
// pool's memory when the last lease has ended and no client maps the memory any more.
//
// Errors: [ErrDenied].
func (p *Pool) Destroy(ctx context.Context) error {
	return p.client.session.Call(ctx, &wire.Destroy{Pool: p.opened.Info.ID}, &wire.EmptyReply{})
}

// DestroyPool ends a pool by name, like [Pool.Destroy]. The pool's maker and the service's own user may destroy the pool even if they may
// not open it.
//
// Errors: [ErrNotFound], [ErrDenied].
func (c *Client) DestroyPool(ctx context.Context, name string) error {
	st, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(st.Pools) { // the newest first: earlier pools of that name are destroyed
		if p.Pool.Name == name {
			return c.session.Call(ctx, &wire.Destroy{Pool: p.Pool.ID}, &wire.EmptyReply{})
		}
	}
	return typed.Errorf(ErrNotFound, "there is no pool %q that this user may use or destroy", name)
}
