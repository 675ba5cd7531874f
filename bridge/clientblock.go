package bridge

import (
	"errors"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// block is what a client knows of a block of the service: it outlives leases, so that the next one on the same block
// costs no mapping. It is guarded by Client.mu.
type block struct {
	export   *mempool.Export // came with the first lease; its files are closed once it is mapped
	data     []byte          // of the export
	mem      *mempool.ImportedBlock
	pool     uint64
	bytes    uint64
	use      uint64                  // generation of the block when the service last told it
	view     mempool.Memory          // as leases of frames use it
	frame    *mempool.LeaseInfo      // of the last frame in it
	tensor   *shmchannel.Description // of that frame
	leases   int
	recalled bool
	unsure   mempool.Memory  // work of this client on it may be under way, and no fence says until when
	busy     []mempool.Fence // of this client's work on it, perhaps done
}

// arrived counts a lease on a block and keeps the export that came with it. It runs in the order in which the service
// sent its replies: a second lease on the block, which comes without an export, may reach its caller first.
func (c *Client) arrived(l wire.Lease, fds *seqpacket.FDs) {
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
		x := exportOf(l.Export, takeFiles(fds, l.Export.FDs))
		b.export, b.data = &x, x.Data
	}
}

func (b *block) forgetExport() {
	if b.export != nil {
		closeFiles(b.export.Files)
		b.export = nil
	}
}

// mapped is the block of a lease, mapped as the lease wants it: what is only read may be mapped read-only.
func (c *Client) mapped(p *Pool, l wire.Lease) (*mempool.ImportedBlock, mempool.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks[l.Block]
	if c.closing || b == nil {
		return nil, nil, errClientClosed
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

// ended ends what arrived counted; done is when this client's work on the block is.
func (c *Client) ended(id uint64, done ...mempool.Fence) error { return c.left(nil, id, done...) }

// left is ended, and takes the lease off the client's list.
func (c *Client) left(l *Lease, id uint64, done ...mempool.Fence) error {
	c.mu.Lock()
	if l != nil {
		c.leases.remove(l)
	}
	b := c.blocks[id]
	if b != nil {
		b.leases--
		b.busy = append(slices.DeleteFunc(b.busy, c.timelines.past), done...)
	}
	if b == nil || !b.recalled || b.leases > 0 { // nil: the client was closed meanwhile
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
	if err != nil { // the service must not free it
		return err
	}
	return c.dropped([]uint64{id})
}

// dropLater gives a recalled block up once this client's work on it is done, unless it is leased again by then. c.mu is
// held.
func (c *Client) dropLater(id uint64, b *block) {
	busy := slices.Clone(b.busy)
	c.background.Go(func() {
		for _, t := range busy {
			if !c.timelines.await(c.done, t) {
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
			_ = c.dropped([]uint64{id}) // it fails with the connection
		}
	})
}

// doubt says that work on a block may be under way that could neither be marked nor waited for.
func (c *Client) doubt(id uint64, m mempool.Memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.blocks[id]; b != nil {
		b.unsure = m
	}
}

// drop unmaps a block that no lease needs. After an error the client still has it, and unmaps it when it is closed. c.mu is
// held.
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

// dropped tells the service that blocks are unmapped.
func (c *Client) dropped(ids []uint64) error {
	for part := range slices.Chunk(ids, wire.MaxElements) {
		if err := c.send(0, &wire.Dropped{Blocks: part}); err != nil {
			return err
		}
	}
	return nil
}

// recall gives up the mappings of blocks, those in use when their last lease ends. A block that could not be unmapped is
// not reported: the service must not free it before this process has ended.
func (c *Client) recall(ids []uint64) {
	var dropped []uint64
	c.mu.Lock()
	for _, id := range ids {
		b := c.blocks[id]
		if b != nil {
			b.busy = slices.DeleteFunc(b.busy, c.timelines.past)
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
	_ = c.dropped(dropped) // it fails with the connection
}

// unmapAll ends every mapping of a client that is being closed and has no leases left. Said before the connection ends,
// it lets the service use the blocks again while this process goes on.
func (c *Client) unmapAll() error {
	c.mu.Lock()
	var errs []error
	var dropped []uint64
	for id, b := range c.blocks {
		err := c.drop(id)
		if err == nil && b.leases == 0 { // one the service would refuse, and with it the others
			dropped = append(dropped, id)
		}
		errs = append(errs, err)
	}
	for id, p := range c.pools {
		errs = append(errs, p.mem.Close())
		delete(c.pools, id)
	}
	c.mu.Unlock()
	if err := c.dropped(dropped); err != nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, errClientClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
