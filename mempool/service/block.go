package service

import (
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/journal"
)

// block is one allocation of an arena. The block makes its export once and keeps it. Service.mu guards all fields except those of the
// export. A service may have a million blocks, so this struct must stay small.
type block struct {
	id   uint64
	pool *Pool
	size uint64
	mem  mempool.Allocation

	generation uint64
	// mapped has the sessions that may map the block: the service sent them the export, and they have neither dropped the block nor ended.
	// While mapped is not empty, the service must not free the block.
	mapped smallSet[*Session]
	// holds counts the ended sessions that had a lease on the block and whose process may still run and access the block. While holds is not
	// 0, no new buffer may use the block. A block with more than maxFences fences has one more hold until these fences are reached.
	holds    int32
	state    blockState
	exported bool     // the mutex exporting guards exported and export
	kept     *keeping // nil until a process keeps the block for the first time
	// fences say when earlier users of the block have finished their work on it. The next user of the block must wait for these fences, and
	// the service must not free the block before they are reached.
	fences fences

	exporting sync.Mutex
	export    mempool.Export
}

type blockState uint8

const (
	blockLeased    blockState = iota // a buffer uses the block
	blockCached                      // free for use
	blockHeld                        // free, but the process of an ended session may still touch the block
	blockRecalling                   // to be freed once the sessions that map it have unmapped it
	blockDraining                    // to be freed once the work on the block is done
	blockFreeing                     // the arena is freeing the block
	blockStuck                       // the arena could not free the block
	blockFreed                       // freed
)

// exportOnce makes the block's export on the first call, and returns the same export in later calls.
func (b *block) exportOnce() (mempool.Export, error) {
	b.exporting.Lock()
	defer b.exporting.Unlock()
	if !b.exported {
		x, err := b.mem.Export()
		if b.pool.svc.journal.Called(journal.ExportBlock, err) != nil {
			return mempool.Export{}, err
		}
		b.export, b.exported = x, true
	}
	return b.export, nil
}
