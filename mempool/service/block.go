package service

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
)

// block is one allocation of an arena, with its export, which is made once and kept. Service.mu guards all fields except the export. A
// service may have a million blocks: keep the struct small.
type block struct {
	id   uint64
	pool *Pool
	size uint64
	mem  mempool.Allocation

	generation uint64
	// mapped are the sessions that were sent the export and have neither dropped the block nor ended. While mapped is not empty, the
	// block must not be freed.
	mapped smallSet[*Session]
	// holds counts the ended sessions that had a lease on the block and whose process may still run and touch it. While there is one, the
	// block must not be used again. A block with too many fences has one hold more until they are reached.
	holds    int32
	state    blockState
	exported bool     // guarded by exporting, like export
	kept     *keeping // nil until a process keeps the block for the first time
	// fences say when the work of former users on the block is done: its next user must wait for them, and the block must not
	// be freed before they are reached.
	fences fences

	exporting sync.Mutex
	export    mempool.Export
}

type blockState uint8

const (
	blockLeased    blockState = iota // a buffer uses it
	blockCached                      // free for use
	blockHeld                        // free, but the process of an ended session may still touch it
	blockRecalling                   // to be freed once the sessions that map it have unmapped it
	blockDraining                    // to be freed once the work on it is done
	blockFreeing                     // the arena is freeing it
	blockStuck                       // the arena could not free it
	blockFreed                       // freed
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
