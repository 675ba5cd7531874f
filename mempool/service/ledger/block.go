package ledger

import (
	"math"
	"slices"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Block is what is known of one allocation of a pool. A service may have a million blocks, so this struct must stay small.
type Block struct {
	ID   uint64
	Pool *Pool
	Size uint64

	// Place says where the memory is, for a successor of this process: for memory of kind host, the offset in the file of the pool; for other
	// memory, which descriptor the memory comes with; 0: no descriptor; PlaceLost: the memory ended with a predecessor of this process.
	Place      uint64
	Generation uint64 // counts the buffers that have used the block
	// Mapped has the sessions that may map the block: they got the export, and have neither dropped the block nor been forgotten. While Mapped
	// is not empty, the service must not free the block.
	Mapped SmallSet[*Session]
	// Holds counts the ended sessions that had a lease on the block and whose process may still run and access the block. While Holds is not
	// 0, no new buffer may use the block. A block with too many fences has one more hold until these fences are reached.
	Holds int32
	State BlockState
	kept  *keeping // nil until a process keeps the block for the first time
	// Fences say when earlier users of the block have finished their work on it. The next user of the block must wait for these fences, and
	// the service must not free the block before they are reached.
	Fences Fences
}

// PlaceLost is the Place of a block whose memory is lost.
const PlaceLost = math.MaxUint64

// BlockState is the state of a block.
type BlockState uint8

// These are the states of a block.
const (
	BlockLeased    BlockState = iota // a buffer uses the block
	BlockCached                      // free for use
	BlockHeld                        // free, but the process of an ended session may still touch the block
	BlockRecalling                   // to be freed once the sessions that map it have unmapped it
	BlockDraining                    // to be freed once the work on the block is done
	BlockFreeing                     // the backing is freeing the block
	BlockStuck                       // the backing could not free the block
	BlockFreed                       // freed
)

func (s BlockState) String() string {
	return [...]string{"leased", "cached", "held", "recalling", "draining", "freeing", "stuck", "freed"}[s]
}

// Growth is a block that is being allocated. It counts for an account.
type Growth struct {
	account *Account
	size    uint64
}

// Grow counts a new block for a, before the block is allocated.
func (a *Account) Grow(size uint64) *Growth {
	p := a.pool
	p.Reserved += size
	p.Leased += size
	p.Blocks++
	a.add(size)
	g := &Growth{a, size}
	p.growing[g] = struct{}{}
	return g
}

// Failed undoes [Account.Grow].
func (g *Growth) Failed() {
	p := g.account.pool
	delete(p.growing, g)
	p.Reserved -= g.size
	p.Leased -= g.size
	p.Blocks--
	g.account.remove(g.size)
}

// Done makes the block after it was allocated. Its first buffer has the generation `first`. A successor of this process finds the memory at
// `place`, with the data `export` if that is not nil.
func (g *Growth) Done(first, place uint64, export []byte) *Block {
	p := g.account.pool
	delete(p.growing, g)
	p.ledger.Last.Block++
	b := &Block{ID: p.ledger.Last.Block, Pool: p, Size: g.size, Generation: first, Place: place}
	p.ledger.Blocks.Set(b.ID, b)
	if export != nil {
		p.ledger.Exports[b.ID] = export
	}
	p.ledger.Touch(b)
	return b
}

// Map notes that a session maps a block.
func (s *Session) Map(b *Block) {
	b.Mapped.Add(s)
	s.Mapped[b.ID] = b
	b.Pool.ledger.Touch(mapping{s, b})
}

// Unmap notes that a session no longer maps a block. The result is true if no session maps the block any more.
func (s *Session) Unmap(b *Block) bool {
	b.Mapped.Remove(s)
	RemoveKey(&s.Mapped, &s.most.mapped, b.ID)
	b.Pool.ledger.Touch(mapping{s, b})
	if b.Mapped.Len() > 0 {
		return false
	}
	if b.State == BlockCached && !b.Pending() {
		b.Pool.loose++
	}
	return true
}

// MayDrop returns those of the blocks that the session maps.
//
// Errors: [mempool.ErrBusy] if the session still has a lease on one of them.
func (s *Session) MayDrop(ids []uint64) (map[*Block]struct{}, error) {
	dropped := make(map[*Block]struct{}, len(ids))
	used := false
	for _, id := range ids {
		if b := s.Mapped[id]; b != nil {
			dropped[b] = struct{}{}
			used = used || b.State == BlockLeased
		}
	}
	if used { // check all leases only in this case; recalled blocks have none
		for _, l := range s.Leases {
			if _, ok := dropped[l.Buffer.Block]; ok {
				return nil, typed.Errorf(mempool.ErrBusy, "session %d has lease %d on block %d, which it says it dropped", s.ID, l.ID, l.Buffer.Block.ID)
			}
		}
	}
	return dropped, nil
}

// Hold notes that the process of a session, which has a lease on the block and ends, may touch the block.
func (b *Block) Hold(s *Session) {
	b.Holds++
	b.keeping().left.Add(s)
	b.touch()
}

// Left notes that the process of a session can touch the block no more. The hold stays.
func (b *Block) Left(s *Session) {
	b.kept.left.Remove(s)
	b.touch()
}

func (b *Block) touch() { b.Pool.ledger.Touch(b) }

// SetFences replaces the fences of the block.
func (b *Block) SetFences(ts Fences) {
	if !slices.Equal(b.Fences, ts) {
		b.touch()
	}
	b.Fences = ts
}

// LastLeft returns the greatest id of the ended sessions whose process may still touch the block, or 0.
func (b *Block) LastLeft() (id uint64) {
	for s := range b.AllLeft() {
		id = max(id, s.ID)
	}
	return id
}

// TakeBack takes back a block that no buffer uses any more. The result is true if the block is free for use now.
func (b *Block) TakeBack() bool {
	p := b.Pool
	p.Leased -= b.Size
	if b.Holds > 0 {
		b.State = BlockHeld
		b.touch()
		p.Held += b.Size
		b.Charge()
		return false
	}
	b.makeFree()
	return true
}

// EndHold ends one hold on a block. The result is true if the block is free for use now.
func (b *Block) EndHold() bool {
	b.Holds--
	b.touch()
	if b.State != BlockHeld {
		return false
	}
	if b.Holds > 0 {
		b.Charge()
		return false
	}
	b.Pool.Held -= b.Size
	b.makeFree()
	return true
}

// Become gives a block that counts as held another state. The result `fewer` is that of Charge.
func (b *Block) Become(state BlockState) (fewer bool) {
	b.State = state
	b.touch()
	return b.Charge()
}

// Freed removes a block that was freed.
func (b *Block) Freed() {
	p := b.Pool
	b.State = BlockFreed
	p.Reserved -= b.Size
	p.Held -= b.Size
	p.Blocks--
	p.ledger.Blocks.Remove(b.ID)
	delete(p.ledger.Exports, b.ID)
	b.touch()
}

// NotFreed notes that a block could not be freed. It stays counted as held.
func (b *Block) NotFreed() {
	b.State = BlockStuck
	b.touch()
	b.Pool.stuck = append(b.Pool.stuck, b)
}
