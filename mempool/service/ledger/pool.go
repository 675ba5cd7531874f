package ledger

import (
	"fmt"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/sizeclass"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Pool is the record of a pool: its settings, its bytes by what they are used for, and its free blocks, which freeblocks.go handles.
type Pool struct {
	ledger *Ledger
	Info   mempool.PoolInfo
	// File names the descriptor of the pool's memory for a successor of this process; 0: there is none.
	File uint64
	// Granularity divides the size of each block.
	Granularity uint64
	Maker       uint32          // the user who made the pool
	Access      *mempool.Access // the users and groups that may use the pool, sorted; never empty

	// Reserved = Leased + Cached + Held, in bytes of blocks. Reserved counts all blocks. Leased counts the blocks that buffers use, and
	// Cached counts the blocks that are free for use. Held counts the blocks that no buffer uses but that cannot be used yet: they are about
	// to be freed, or the process of an ended session keeps them.
	Reserved, Leased, Cached, Held uint64
	Used                           uint64 // bytes of the buffers
	Blocks                         int
	Has                            struct{ Leases, Buffers, Names int }
	Channels                       int
	Producers                      map[*Session]int     // how many producers in channels the sessions have; nil: none so far
	names                          Index[string, *Name] // of the pool's buffers
	Closing                        bool                 // the pool is being destroyed
	Closed                         bool                 // the pool is destroyed, and its backing is being closed: nobody sees the pool any more
	growing                        map[*Growth]struct{}

	cache       map[uint64][]*Block // cached blocks without work under way, by size, oldest first
	loose       int                 // how many blocks in cache no session maps
	pending     map[uint64]*pending // cached blocks with work under way, by size
	lastPending uint64              // how many blocks became pending so far
	stuck       []*Block            // could not be freed; counted as held
	users       Tally               // bytes that count for each user: see charges.go
	charged     map[*Block]struct{} // free blocks that count for a process
}

// ReservePool reserves the name of a pool that the user `maker` makes.
func (l *Ledger) ReservePool(name string, maker uint32, access mempool.Access) *Pool {
	p := &Pool{ledger: l, Info: mempool.PoolInfo{Name: name}, Maker: maker, Access: &access}
	l.PoolNames[name] = p
	l.poolsOf.add(maker, 1)
	return p
}

// AddPool completes a pool of ReservePool: it gives the pool the next id, whatever id `info` has, and lists it in Pools. The number `file` is
// that of the memory's descriptor in the store; 0: it has none.
func (l *Ledger) AddPool(p *Pool, info mempool.PoolInfo, granularity, file uint64) {
	l.Last.Pool++
	info.ID = l.Last.Pool
	p.Info, p.Granularity, p.File = info, granularity, file
	p.makeLists()
	l.Pools[info.ID] = p
	l.Touch(p)
}

func (p *Pool) makeLists() {
	p.growing, p.cache, p.pending = make(map[*Growth]struct{}), make(map[uint64][]*Block), make(map[uint64]*pending)
	p.users, p.charged = make(Tally), make(map[*Block]struct{})
}

// Close notes that the pool is being destroyed: its name is free.
func (p *Pool) Close() {
	p.Closing = true
	delete(p.ledger.PoolNames, p.Info.Name)
	p.ledger.Touch(p)
}

// RemovePool removes a pool: one that could not be made, or one that is destroyed. It also removes the pool's blocks that could not be freed,
// and returns them.
func (l *Ledger) RemovePool(p *Pool) []*Block {
	if l.PoolNames[p.Info.Name] == p {
		delete(l.PoolNames, p.Info.Name)
	}
	delete(l.Pools, p.Info.ID)
	l.poolsOf.add(p.Maker, -1)
	for s := range l.Sessions.All() {
		delete(s.Accounts, p)
	}
	for s := range l.Ended.All() {
		delete(s.Accounts, p)
	}
	for _, b := range p.stuck {
		l.Blocks.Remove(b.ID)
		delete(l.Exports, b.ID)
		l.Touch(b)
	}
	if p.Info.ID != 0 {
		l.Touch(p)
	}
	return p.stuck
}

// SeenPool finds a pool that a session may see.
//
// Errors: [mempool.ErrClosed], [mempool.ErrNotFound].
func (l *Ledger) SeenPool(s *Session, id uint64) (*Pool, error) {
	if err := s.Alive(); err != nil {
		return nil, err
	}
	if p := Find(s, l.Pools[id]); p != nil && !p.Closed {
		return p, nil
	}
	return nil, typed.Errorf(mempool.ErrNotFound, "there is no pool %d that user %d may use", id, s.Peer.UID)
}

// UsablePool finds a pool that a session may use.
//
// Errors: those of SeenPool, [mempool.ErrDenied].
func (l *Ledger) UsablePool(s *Session, id uint64) (*Pool, error) {
	p, err := l.SeenPool(s, id)
	if err == nil && !p.Access.Allows(s.Peer) {
		return nil, p.Denied(s.Peer)
	}
	return p, err
}

// BlockSize returns the size of the block that a buffer of n bytes needs.
func (p *Pool) BlockSize(n uint64) (uint64, error) {
	unit, largest := p.Info.Kind.Granularity(n, p.Granularity), p.Info.Kind.LargestBlock()
	size := sizeclass.Of(n, unit)
	if size > min(p.Info.MaxBytes, largest) { // n without rounding to a size class may fit
		size = sizeclass.RoundUp(max(n, 1), unit)
	}
	if size > largest {
		return 0, typed.Errorf(mempool.ErrLimit, "%s are too large for pool %q: NVIDIA's driver crashes programs that open a larger block of kind %s than %s; "+
			"use a pool of kind host for memory of the CPU, or device or vmm for memory of a GPU", bytesize.Text(n), p.Info.Name, p.Info.Kind, bytesize.Text(largest))
	}
	if size > p.Info.MaxBytes {
		return 0, typed.Errorf(mempool.ErrLimit, "pool %q is too small for %s, which need a block of %s: its max_bytes is %s; make a pool with a larger max_bytes",
			p.Info.Name, bytesize.Text(n), bytesize.Text(size), bytesize.Text(p.Info.MaxBytes))
	}
	return size, nil
}

// Freeing reports whether the pool has blocks that are about to be freed. Blocks that could not be freed do not count.
func (p *Pool) Freeing() bool {
	n := p.Held
	for _, b := range p.stuck {
		n -= b.Size
	}
	return n > 0
}

// Gone reports whether the pool has no blocks any more, except blocks that could not be freed.
func (p *Pool) Gone() bool { return p.Blocks == len(p.stuck) }

// Stuck reports whether the pool has blocks that could not be freed.
func (p *Pool) Stuck() bool { return len(p.stuck) > 0 }

// Ending returns the error of a pool that is being destroyed.
func (p *Pool) Ending() error {
	return typed.Errorf(mempool.ErrClosed, "pool %q is being destroyed", p.Info.Name)
}

// Full returns the error that says why the pool has no room for size bytes.
func (p *Pool) Full(size uint64) error {
	err := typed.Errorf(mempool.ErrLimit, "no room for %s in pool %q: %s of %s are reserved, of which %s are leased and %s are free but still "+
		"mapped or being given back; release some, wait longer, or make a pool with a larger max_bytes", bytesize.Text(size), p.Info.Name, bytesize.Text(p.Reserved),
		bytesize.Text(p.Info.MaxBytes), bytesize.Text(p.Leased), bytesize.Text(p.Held))
	if p.Held > 0 {
		err = fmt.Errorf("%w (%w)", err, mempool.ErrRecalling)
	}
	return err
}

// Denied returns the error of a peer that sees the pool, because it made the pool or owns the service, and may not use it.
func (p *Pool) Denied(peer mempool.Peer) error {
	return typed.Errorf(mempool.ErrDenied, "user %[2]d (group %[3]d) may not use pool %[1]q: its maker gives it an access list that names the user or the group "+
		"(uid=%[2]d or gid=%[3]d in --pool, uids and gids in Python)", p.Info.Name, peer.UID, peer.GID)
}

// UserBytes returns how many bytes count for a user.
func (p *Pool) UserBytes(uid uint32) uint64 { return uint64(p.users[uid]) }

// Bounded says whether the pool has a limit for each session or for each user.
func (p *Pool) Bounded() bool { return p.Info.SessionBytes > 0 || p.Info.UserBytes > 0 }

// LargestHolder returns the session that has the most bytes in the pool, or nil if no session has any.
func (p *Pool) LargestHolder() (most *Session, bytes uint64) {
	for s := range p.ledger.Sessions.All() {
		if a := s.Accounts[p]; a != nil && (a.bytes > bytes || a.bytes == bytes && bytes > 0 && s.ID < most.ID) {
			most, bytes = s, a.bytes
		}
	}
	return most, bytes
}

// VisibleTo says whether a session may see the pool.
func (p *Pool) VisibleTo(s *Session) bool { return s.MaySee(p.Maker, p.Access) }
