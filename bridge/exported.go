package bridge

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Exported is a read lease whose memory this process does not map. A program uses an Exported to tell other programs where the memory is.
type Exported struct {
	client *Client
	info   *mempool.Grant
	pool   mempool.PoolInfo
	data   []byte
	ended  atomic.Bool
}

// Export leases the buffer that is published under a name. Export waits until the name exists and the buffer's content is complete. Export
// maps no memory, so Export needs no GPU.
//
// Errors: those of [Client.Get].
func (c *Client) Export(ctx context.Context, name string) (*Exported, error) {
	return export(ctx, c, session.Waiting, name)
}

// TryExport is like [Client.Export], but does not wait until the name exists. TryExport still waits until the buffer's content is complete.
//
// Errors: those of [Client.TryGet].
func (c *Client) TryExport(ctx context.Context, name string) (*Exported, error) {
	return export(ctx, c, session.Once, name)
}

func export(ctx context.Context, c *Client, try session.Attempt, name string) (x *Exported, err error) {
	x = &Exported{client: c}
	r := &wire.Get{Name: name}
	if x.info, x.data, err = c.session.Blocks.ObtainUnmapped(ctx, try, r, &r.Wait); err != nil {
		return nil, err
	}
	if x.pool, err = c.session.Blocks.Describe(ctx, x.info.Pool); err != nil {
		return nil, errors.Join(err, x.Release())
	}
	// The caller passes the address to programs that do not use fences, so wait here until the content is complete.
	order := c.session.Timelines.Order()
	order.Begin(x.info.Wait, true)
	if err := order.Before(ctx, mempool.CPU); err != nil {
		return nil, errors.Join(err, x.Release())
	}
	return x, nil
}

// Grant returns the description of the lease.
func (x *Exported) Grant() Grant { return *x.info }

// Pool returns the description of the buffer's pool.
func (x *Exported) Pool() PoolInfo { return x.pool }

// Saved returns the place of the buffer in a form that a file can hold. `name` is the name of the buffer. `socket` is the path at which the
// service listens.
func (x *Exported) Saved(name, socket string) Saved {
	t := x.info.Tensor
	s := mempool.Saved{Version: mempool.SavedVersion, Kind: x.pool.Kind, Device: x.pool.Device.UUID, Bytes: x.info.Base + x.info.Bytes,
		DType: t.DType, Shape: t.Shape, Strides: t.Strides, ByteOffset: x.info.Base + t.ByteOffset,
		Socket: socket, Name: name, Epoch: x.client.session.Epoch.String()}
	if x.pool.Kind == mempool.Legacy {
		s.Handle = x.data
	}
	return s
}

// Release ends the lease. If no name and no other lease keeps the buffer, the programs that have opened the memory must finish their work
// on the memory before the call of Release. A second call does nothing.
//
// Errors: [ErrDisconnected].
func (x *Exported) Release() error {
	if x.ended.Swap(true) {
		return nil
	}
	return x.client.session.Blocks.ReleaseGrant(x.info, false)
}
