package service

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
)

// block is one allocation of an arena with its export, made once and kept. Everything but the export is guarded by
// Service.mu. There are many: what it has room for costs each of them.
type block struct {
	id   uint64
	pool *Pool
	size uint64
	mem  mempool.Allocation

	generation uint64
	// mapped are the sessions that were sent the export and have neither dropped it nor ended: while there is one, the
	// block must not be freed.
	mapped smallSet[*Session]
	// holds counts who may still touch the block although no lease says so: ended sessions that had a lease on it and
	// whose process may still run. While there is one, the block must not be used again.
	holds    int32
	state    blockState
	exported bool     // guarded by exporting, like export
	kept     *keeping // nil as long as nobody kept others from having the block
	// fences are what work on the block by its former users waits for: its next user must wait for them, and it must not
	// be freed before they are reached.
	fences fences

	exporting sync.Mutex
	export    mempool.Export
}

type blockState uint8

const (
	blockLeased    blockState = iota // a buffer uses it
	blockCached                      // free for use
	blockHeld                        // free, but somebody may still touch it
	blockRecalling                   // free and about to be freed: mappings have been asked back
	blockDraining                    // free and about to be freed: work on it is under way
	blockFreeing                     // being given back to the arena
	blockStuck                       // the arena would not take it back
	blockFreed                       // gone
)

// exportOnce makes the block's export on the first call and returns the same afterwards.
func (b *block) exportOnce() (mempool.Export, error) {
	b.exporting.Lock()
	defer b.exporting.Unlock()
	if !b.exported {
		x, err := b.mem.Export()
		if b.pool.svc.driver.called(exportBlock, err) != nil {
			return mempool.Export{}, err
		}
		b.export, b.exported = x, true
	}
	return b.export, nil
}
