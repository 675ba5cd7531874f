package bridge

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Exported is a lease to read whose memory this process does not map: it is for telling others where the memory is.
type Exported struct {
	client *Client
	info   *mempool.LeaseInfo
	pool   mempool.PoolInfo
	data   []byte
	ended  bool
}

// Export leases the buffer that is published under a name, and waits up to wait for it. Nothing is mapped, so that it
// needs no GPU.
//
// Errors: as [Client.Get].
func (c *Client) Export(ctx context.Context, name string, wait time.Duration) (*Exported, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	x := &Exported{client: c}
	var reply wire.LeaseReply
	err := c.call(ctx, &wire.Get{Name: name, Wait: wireWait(wait)}, &call{into: &reply,
		files: func(fds *seqpacket.FDs) { c.arrived(reply.Lease, fds) },
		undo:  func() { _ = (&Lease{client: c, info: leaseOf(reply.Lease)}).end(false) }})
	if err != nil {
		return nil, err
	}
	x.info = leaseOf(reply.Lease)
	if x.pool, err = c.poolInfo(ctx, x.info.Pool); err != nil {
		return nil, errors.Join(err, x.Release())
	}
	// The caller is handed an address, and knows of no fences.
	order := mempool.Order{Pages: c.page, Clock: c.Clock}
	order.Begin(x.info.Wait, true)
	if err := order.Before(ctx, mempool.CPU); err != nil {
		return nil, errors.Join(err, x.Release())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.blocks[x.info.Block]; b != nil {
		x.data = b.data
	}
	return x, nil
}

// poolInfo describes a pool of the service without opening it here.
func (c *Client) poolInfo(ctx context.Context, id uint64) (mempool.PoolInfo, error) {
	var reply wire.PoolReply
	var files []*os.File
	err := c.call(ctx, &wire.Open{Pool: id}, &call{into: &reply, files: func(fds *seqpacket.FDs) {
		if reply.Pool.Export != nil {
			files = takeFiles(fds, reply.Pool.Export.FDs)
		}
	}, undo: func() { closeFiles(files) }})
	if err != nil {
		return mempool.PoolInfo{}, err
	}
	closeFiles(files)
	return poolOf(reply.Pool), nil
}

// Info describes the lease, and Pool the pool that it is in.
func (x *Exported) Info() mempool.LeaseInfo { return *x.info }

// Pool describes the pool that the buffer is in.
func (x *Exported) Pool() mempool.PoolInfo { return x.pool }

// Saved says where the buffer is, for a file. socket is where the service listens.
func (x *Exported) Saved(name, socket string) mempool.Saved {
	t := x.info.Tensor
	s := mempool.Saved{Version: mempool.SavedVersion, Kind: x.pool.Kind, Device: x.pool.Device.UUID, Bytes: x.info.Bytes,
		DType: t.DType, Shape: t.Shape, Strides: t.Strides, ByteOffset: t.ByteOffset,
		Socket: socket, Name: name, Epoch: x.client.epoch.String()}
	if x.pool.Kind == mempool.Legacy {
		s.Handle = x.data
	}
	return s
}

// Release ends the lease. The program that opened the memory must be done with it, unless its name or another lease holds it.
//
// Errors: [ErrReleased].
func (x *Exported) Release() error {
	if x.ended {
		return x.client.hasEnded(x.info)
	}
	x.ended = true
	return (&Lease{client: x.client, info: x.info}).end(false)
}
