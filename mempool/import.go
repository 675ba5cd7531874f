package mempool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// imports has the pools and blocks that this process has imported from services. The driver does not count imports: a second import of a
// block returns the same address, and the first free unmaps the block for the whole process. So this process imports each pool and each
// block once, for all its sessions, and counts the users of each import. For some kinds of memory, an import works for one GPU only. For
// these kinds, this process has one import for each GPU.
var imports = struct {
	mu    sync.Mutex
	pools map[importKey]*ImportedPool
}{pools: make(map[importKey]*ImportedPool)}

type importKey struct {
	epoch Epoch
	id    uint64
	other string // UUID of the GPU that the import serves; empty if the import serves the pool's own GPU or any GPU
}

// ImportedPool is a pool that a service owns and that this process has opened. All sessions of this process that use the pool on the same
// GPU share one ImportedPool.
type ImportedPool struct {
	key     importKey
	info    PoolInfo
	backing ImportedBacking
	users   int // guarded by imports.mu
	blocks  map[uint64]*ImportedBlock
}

// ImportedBlock is a block of an [ImportedPool]. This process has imported the block.
type ImportedBlock struct {
	mapping Mapping
	pool    *ImportedPool
	id      uint64
	size    uint64
	users   int // guarded by imports.mu
}

// ImportPool opens a pool of the service with epoch e, for work on one GPU. The parameter `device` is the GPU's ordinal or its UUID; ""
// means the pool's own GPU. If `device` is another GPU, this GPU can access the pool's memory in this process until this process closes the
// pool. The caller may close the files of x afterwards.
//
// Errors: [ErrUnavailable] if this process cannot use the pool's device, or if the hardware does not let the GPU `device` access the pool's
// memory (the text then names both GPUs); [ErrInvalid] if x is not the export of the pool that info describes.
func ImportPool(e Epoch, info PoolInfo, x Export, device string) (*ImportedPool, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	p, err := importPool(e, info, x, device)
	if err != nil {
		return nil, fmt.Errorf("pool %q: %w", info.Name, err)
	}
	return p, nil
}

// importPool does the same as ImportPool. The caller holds imports.mu.
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
		backing, err := backend.openOn(info, x, other)
		if err != nil {
			return nil, err
		}
		p = &ImportedPool{key: key, info: info, backing: backing, blocks: make(map[uint64]*ImportedBlock)}
	}
	if device != "" {
		err = p.backing.Reach(device)
	}
	if err != nil && p.users == 0 {
		err = errors.Join(err, p.backing.Close())
	}
	if err != nil {
		return nil, err
	}
	p.users++
	imports.pools[key] = p
	return p, nil
}

// apart returns the UUID of the GPU `device` if the pool needs a separate import for this GPU. It returns "" if the import for the pool's
// own GPU can also serve `device`.
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

func (b Backend) openOn(info PoolInfo, x Export, other string) (ImportedBacking, error) {
	if other != "" {
		return b.OpenFor(info, x, other)
	}
	return b.Open(info, x)
}

// Block imports the block with the given id, or returns the import that this process already has. If this process has an import of the
// block, x may be nil.
//
// Errors: [ErrInvalid] if x is not the export of a block of this pool, [ErrNotFound] if there is no import and x is nil.
func (p *ImportedPool) Block(id, size uint64, x *Export) (*ImportedBlock, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	if b := p.blocks[id]; b != nil {
		b.users++
		return b, nil
	}
	if x == nil {
		return nil, typed.Errorf(ErrNotFound, "block %d of pool %q is not mapped here, and its export did not come along", id, p.info.Name)
	}
	m, err := p.backing.Import(*x, size)
	if err != nil {
		return nil, fmt.Errorf("block %d of pool %q: %w", id, p.info.Name, err)
	}
	b := &ImportedBlock{mapping: m, pool: p, id: id, size: size, users: 1}
	p.blocks[id] = b
	p.users++
	return b, nil
}

// Memory returns the block's mapping for reading and writing if write is true, and the mapping for reading otherwise. The caller can use
// the result until it calls Close. If memory of the kind cannot be mapped read-only, both mappings are the same.
func (b *ImportedBlock) Memory(write bool) (Memory, error) {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	m, err := b.mapping.Memory(write)
	if err != nil {
		return nil, fmt.Errorf("block %d of pool %q: %w", b.id, b.pool.info.Name, err)
	}
	return m, nil
}

// Close ends one use of the block. After the last use, Close unmaps the block. If the driver fails to unmap the block, the use continues,
// and the caller can call Close again.
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

// Close ends one use of the pool. When the last use of the pool and the last use of its blocks have ended, this process closes the pool.
func (p *ImportedPool) Close() error {
	imports.mu.Lock()
	defer imports.mu.Unlock()
	return p.leave()
}

// leave ends one use of the pool. The caller holds imports.mu.
func (p *ImportedPool) leave() error {
	if p.users--; p.users > 0 {
		return nil
	}
	delete(imports.pools, p.key)
	return p.backing.Close()
}
