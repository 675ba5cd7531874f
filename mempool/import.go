package mempool

import (
	"fmt"
	"sync"
)

// imports are the pools and blocks of services that this process maps. The driver counts neither: importing twice gives
// the same address, and the first free unmaps it for everybody in the process. So there is one import for each pool
// and block in the process, counted here, whichever session asked for it.
var imports = struct {
	mu    sync.Mutex
	pools map[importKey]*ImportedPool
}{pools: make(map[importKey]*ImportedPool)}

type importKey struct {
	epoch Epoch
	id    uint64
}

// ImportedPool is a pool of a service, opened in this process. It is shared by the sessions of the process that use it.
type ImportedPool struct {
	key    importKey
	info   PoolInfo
	arena  ImportedArena
	users  int // guarded by imports.mu
	blocks map[uint64]*ImportedBlock
}

// ImportedBlock is a block of an [ImportedPool], imported once into this process.
type ImportedBlock struct {
	mapping Mapping
	pool    *ImportedPool
	id      uint64
	size    uint64
	users   int // guarded by imports.mu
}

// ImportPool opens a pool of the service that the epoch names. The files of x may be closed afterwards.
//
// Errors: [ErrUnavailable] where this process cannot reach the pool's device, [ErrInvalid] for an export that is none.
func ImportPool(e Epoch, info PoolInfo, x Export) (*ImportedPool, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	key := importKey{e, info.ID}
	if p := imports.pools[key]; p != nil {
		p.users++
		return p, nil
	}
	backend, err := info.Kind.backend()
	if err != nil {
		return nil, err
	}
	arena, err := backend.open(info, x)
	if err != nil {
		return nil, fmt.Errorf("pool %q: %w", info.Name, err)
	}
	p := &ImportedPool{key: key, info: info, arena: arena, users: 1, blocks: make(map[uint64]*ImportedBlock)}
	imports.pools[key] = p
	return p, nil
}

// Reach lets another GPU than the pool's own (an ordinal or a UUID) reach the pool's memory from this process, until the
// pool is closed.
//
// Errors: [ErrUnavailable], naming both GPUs, where the hardware does not let it.
func (p *ImportedPool) Reach(device string) error {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	if err := p.arena.Reach(device); err != nil {
		return fmt.Errorf("pool %q: %w", p.info.Name, err)
	}
	return nil
}

// Block imports a block, or returns the import that this process has of it. x may be nil if it has.
//
// Errors: [ErrInvalid] for an export that is none of this pool's, [ErrNotFound] if it is not imported and x is nil.
func (p *ImportedPool) Block(id, size uint64, x *Export) (*ImportedBlock, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	if b := p.blocks[id]; b != nil {
		b.users++
		return b, nil
	}
	if x == nil {
		return nil, situation(ErrNotFound, "block %d of pool %q is not mapped here, and its export did not come along", id, p.info.Name)
	}
	m, err := p.arena.Import(*x, size)
	if err != nil {
		return nil, fmt.Errorf("block %d of pool %q: %w", id, p.info.Name, err)
	}
	b := &ImportedBlock{mapping: m, pool: p, id: id, size: size, users: 1}
	p.blocks[id] = b
	p.users++
	return b, nil
}

// Memory is the block mapped to be read, or to be read and written, for as long as the block is in use. The two are one
// where the kind of memory cannot be read-only.
func (b *ImportedBlock) Memory(write bool) (Memory, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	m, err := b.mapping.Memory(write)
	if err != nil {
		return nil, fmt.Errorf("block %d of pool %q: %w", b.id, b.pool.info.Name, err)
	}
	return m, nil
}

// Close ends one use of the block; the last one unmaps it. After an error that use goes on: the block can be closed again.
func (b *ImportedBlock) Close() error {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	if b.users > 1 {
		b.users--
		return nil
	}
	if err := insist(b.mapping.Close); err != nil {
		return err
	}
	delete(b.pool.blocks, b.id)
	return b.pool.leave()
}

// Close ends one use of the pool; the last one, and the last block's, closes it.
func (p *ImportedPool) Close() error {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	return p.leave()
}

// leave ends one use of the pool. imports.mu is held.
func (p *ImportedPool) leave() error {
	if p.users--; p.users > 0 {
		return nil
	}
	delete(imports.pools, p.key)
	return p.arena.Close()
}
