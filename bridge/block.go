package bridge

import (
	"errors"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// block is what a client knows about a block of the service. A block stays mapped after its leases have ended, so that the next lease on
// the block needs no new mapping. Client.mu guards the fields.
type block struct {
	export   *mempool.Export // came with the first lease; its files are closed when the block is mapped
	data     []byte          // Data of the export
	mem      *mempool.ImportedBlock
	pool     uint64
	bytes    uint64
	use      uint64         // generation of the block, as the service last reported it
	view     mempool.Memory // the memory of which leases of frames use a part
	frames   map[*shmchannel.Description]described
	leases   int
	recalled bool
	unsure   mempool.Memory  // not nil: work of this client on this memory may be running without a fence for its end
	busy     []mempool.Fence // fences of this client's work on the block; some may be reached
}

// described is what leases of frames with the same block and description share.
type described struct {
	info   *mempool.Grant
	memory mempool.Memory
}

// maxDescribed is how many descriptions of frames in one block a client remembers.
const maxDescribed = 4096

// arrived counts a lease on a block and keeps the export that came with the lease. arrived must run in the order of the service's replies,
// because only the first lease on a block comes with an export, and a later lease may reach its caller before the first lease does.
func (c *Client) arrived(l wire.Grant, fds *seqpacket.FDs) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks[l.Block]
	if b == nil {
		b = new(block)
		c.blocks[l.Block] = b
	}
	b.leases++
	b.pool, b.bytes, b.use = l.Pool, l.BlockBytes, l.Generation
	if l.Export != nil && b.mem == nil {
		b.forgetExport()
		x := convert.Export(l.Export, session.TakeFiles(fds, l.Export.FDs))
		b.export, b.data = &x, x.Data
	}
}

func (b *block) forgetExport() {
	if b.export != nil {
		session.CloseFiles(b.export.Files)
		b.export = nil
	}
}

// mapped maps the block of a lease, unless the block is mapped already. It returns the mapped block and the block's memory. For a read
// lease, the memory may be read-only.
func (c *Client) mapped(p *Pool, l wire.Grant) (*mempool.ImportedBlock, mempool.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks[l.Block]
	if c.closing || b == nil {
		return nil, nil, session.ErrClientClosed
	}
	if b.mem == nil {
		mem, err := p.mem.Block(l.Block, l.BlockBytes, b.export)
		if err != nil {
			return nil, nil, err
		}
		b.mem = mem
		b.forgetExport()
	}
	m, err := b.mem.Memory(l.Write)
	return b.mem, m, err
}

// ended undoes one call of arrived. done are the fences after which this client's work on the block is done.
func (c *Client) ended(id uint64, done ...mempool.Fence) error { return c.left(nil, id, done...) }

// left is like ended, and also removes the lease from the client's list.
func (c *Client) left(l *Lease, id uint64, done ...mempool.Fence) error {
	c.mu.Lock()
	if l != nil {
		c.leases.remove(l)
	}
	b := c.blocks[id]
	if b != nil {
		b.leases--
		b.busy = append(slices.DeleteFunc(b.busy, c.session.Timelines.Past), done...)
	}
	if b == nil || !b.recalled || b.leases > 0 { // nil: the client has been closed
		c.mu.Unlock()
		return nil
	}
	if len(b.busy) > 0 {
		c.dropLater(id, b)
		c.mu.Unlock()
		return nil
	}
	err := c.drop(id)
	c.mu.Unlock()
	if err != nil { // the block is still mapped, so the service must not free it
		return err
	}
	return c.dropped([]uint64{id})
}

// dropLater drops a recalled block when this client's work on the block is done, unless the block has a new lease. The caller holds c.mu.
func (c *Client) dropLater(id uint64, b *block) {
	busy := slices.Clone(b.busy)
	c.background.Go(func() {
		for _, t := range busy {
			if !c.session.Timelines.Await(t) {
				return
			}
		}
		c.mu.Lock()
		again := c.closing || c.blocks[id] != b || b.leases > 0
		var err error
		if !again {
			err = c.drop(id)
		}
		c.mu.Unlock()
		if !again && err == nil {
			_ = c.dropped([]uint64{id}) // dropped fails only if the connection is gone
		}
	})
}

// doubt notes that work on a block may still be running: no fence marks the end of the work, and the client could not wait for the end.
func (c *Client) doubt(id uint64, m mempool.Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.blocks[id]; b != nil {
		b.unsure = m
	}
}

// drop unmaps a block that has no leases. If unmapping fails, the client keeps the block and unmaps it when the client is closed. The
// caller holds c.mu.
func (c *Client) drop(id uint64) error {
	b := c.blocks[id]
	if b == nil {
		return nil
	}
	b.forgetExport()
	if b.unsure != nil {
		if err := b.unsure.Synchronize(); err != nil {
			return err
		}
		b.unsure = nil
	}
	if b.mem != nil {
		if err := b.mem.Close(); err != nil {
			return err
		}
	}
	delete(c.blocks, id)
	return nil
}

// dropped tells the service that the client has unmapped blocks.
func (c *Client) dropped(ids []uint64) error {
	for part := range slices.Chunk(ids, wire.MaxElements) {
		if err := c.session.Send(&wire.Dropped{Blocks: part}); err != nil {
			return err
		}
	}
	return nil
}

// recall unmaps the blocks that the service wants to free. If a block has leases, the client unmaps the block when the last of these leases
// ends. If this client's work on a block is still running, the client unmaps the block when the work has ended. If recall cannot unmap a
// block, it does not tell the service that the client has dropped the block. So the service does not free the block before this process has
// ended.
func (c *Client) recall(ids []uint64) {
	var dropped []uint64
	c.mu.Lock()
	for _, id := range ids {
		b := c.blocks[id]
		if b != nil {
			b.busy = slices.DeleteFunc(b.busy, c.session.Timelines.Past)
		}
		switch {
		case b != nil && b.leases > 0:
			b.recalled = true
		case b != nil && len(b.busy) > 0:
			b.recalled = true
			c.dropLater(id, b)
		case c.drop(id) == nil:
			dropped = append(dropped, id)
		}
	}
	c.mu.Unlock()
	_ = c.dropped(dropped) // dropped fails only if the connection is gone
}

// unmapAll unmaps all blocks of a client that is being closed and has no leases. Before the connection ends, unmapAll tells the service
// which blocks are unmapped, so that the service can use them again while this process lives.
func (c *Client) unmapAll() error {
	c.mu.Lock()
	var errs []error
	var dropped []uint64
	for id, b := range c.blocks {
		err := c.drop(id)
		if err == nil && b.leases == 0 { // the service would refuse the whole list for one block with leases
			dropped = append(dropped, id)
		}
		errs = append(errs, err)
	}
	for id, p := range c.pools {
		errs = append(errs, p.mem.Close())
		delete(c.pools, id)
	}
	c.mu.Unlock()
	if err := c.dropped(dropped); err != nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, session.ErrClientClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
