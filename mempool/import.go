package mempool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/internal/situation"
)

// imports are the pools and blocks of services that this process maps. The driver counts neither: importing twice gives
// the same address, and the first free unmaps it for everybody in the process. So there is one import for each pool
// and block in the process, counted here, whichever session asked for it; and one for each GPU where a kind's imports
// serve one GPU only.
var imports = struct {
	mu    sync.Mutex
	pools map[importKey]*ImportedPool
}{pools: make(map[importKey]*ImportedPool)}

type importKey struct {
	epoch Epoch
	id    uint64
	other string // the UUID of the GPU that it is open for, if not for the pool's own or for any
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

// ImportPool opens a pool of the service that the epoch names, for work on a device (an ordinal or a UUID; "" is the
// pool's own): where that is another GPU, it reaches the pool's memory from this process until the pool is closed. The
// files of x may be closed afterwards.
//
// Errors: [ErrUnavailable] where this process cannot reach the pool's device, or, naming both GPUs, where the hardware
// does not let the other one; [ErrInvalid] for an export that is none.
func ImportPool(e Epoch, info PoolInfo, x Export, device string) (*ImportedPool, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	p, err := importPool(e, info, x, device)
	if err != nil {
		return nil, fmt.Errorf("pool %q: %w", info.Name, err)
	}
	return p, nil
}

// importPool is ImportPool. imports.mu is held.
func importPool(e Epoch, info PoolInfo, x Export, device string) (*ImportedPool, error) {
	backend, err := info.Kind.backend()
	if err != nil {
		return nil, err
	}
	other, err := backend.apart(info, device)
	if err != nil {
		return nil, err
	}
	key := importKey{e, info.ID, other}
	p := imports.pools[key]
	if p == nil {
		arena, err := backend.openOn(info, x, other)
		if err != nil {
			return nil, err
		}
		p = &ImportedPool{key: key, info: info, arena: arena, blocks: make(map[uint64]*ImportedBlock)}
	}
	if device != "" {
		err = p.arena.Reach(device)
	}
	if err != nil && p.users == 0 {
		err = errors.Join(err, p.arena.Close())
	}
	if err != nil {
		return nil, err
	}
	p.users++
	imports.pools[key] = p
	return p, nil
}

// apart is the UUID of the GPU that a pool has to be opened for apart from what others have open; "" where they share it.
func (b Backend) apart(info PoolInfo, device string) (string, error) {
	if b.OpenFor == nil || device == "" {
		return "", nil
	}
	d, err := FindDevice(device)
	if err != nil {
		return "", err
	}
	if own, err := deviceOf(info); err != nil || d == own {
		return "", err
	}
	uuid, err := d.UUID()
	return uuid.String(), deviceError("read the GPU's UUID", err)
}

func (b Backend) openOn(info PoolInfo, x Export, other string) (ImportedArena, error) {
	if other != "" {
		return b.OpenFor(info, x, other)
	}
	return b.Open(info, x)
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
		return nil, situation.Of(ErrNotFound, "block %d of pool %q is not mapped here, and its export did not come along", id, p.info.Name)
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
