package ledger

import (
	"slices"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Buffer is one use of a block. A service may have a million buffers, so this struct must stay small.
type Buffer struct {
	ID         uint64
	Generation uint64
	Block      *Block
	Tensor     *mempool.Tensor // shared with other buffers, and never changed
	Bytes      uint64
	Account    *Account // counts the buffer's block

	Writer  *Lease
	Readers SmallSet[*Lease]
	Names   int32  // how many names hold the buffer
	Frames  int32  // how many channels hold the buffer
	Ready   Fences // the content is complete once these fences are reached
	Failed  bool
	Doubted bool   // the writer is gone, and a channel may have the buffer; if no channel has it, the buffer has failed
	Made    uint32 // seconds after the service began
}

// Lease is one session's right to use one buffer, to write or to read.
type Lease struct {
	ID      uint64
	Session *Session
	Buffer  *Buffer
	Write   bool
	Ended   bool
	Began   uint32 // seconds after the service began; 4 bytes, so that the struct does not grow
	Wait    Fences // the fences that must be reached before the session uses the memory
}

// buffers is the table of the buffers, with what only few of them have.
type buffers struct {
	Buffers Index[uint64, *Buffer]

	reasons map[uint64]string // by id of a failed buffer: the reason that the producer gave
	events  map[uint64][]byte // by id of a buffer: the handle of the interprocess event that came with the content

	published     map[uint64]published // by id of a buffer that has or had a name
	mostPublished int                  // the greatest length of this map

	divisions map[uint64]*division // by id of a buffer that is a range, or has ranges
}

// published is what is known of the names that a buffer has or had.
type published struct {
	name    string // of the newest publication
	version uint64 // of the newest publication
	lost    uint64 // the greatest version of a name that the buffer has lost
}

// replaced returns the version of the content that a publication of the buffer replaces: that of the old name, which may be nil, or that which
// names of the buffer had before its content was written anew.
func (p published) replaced(old *Name) uint64 {
	if old == nil {
		return p.lost
	}
	return max(old.Version, p.lost)
}

func (b *Buffer) ledger() *Ledger { return b.Block.Pool.ledger }

// Published returns the name and version of the newest publication of the buffer, and whether it has this name still. "": it was never
// published. Who sees the buffer may know its names: see [Name.VisibleTo].
func (b *Buffer) Published() (name string, version uint64, still bool) {
	l := b.ledger()
	p := l.published[b.ID]
	n := l.Names.Get(p.name)
	return p.name, p.version, n != nil && n.Buffer == b
}

// division is what is known of a buffer that is a range: a part of the memory of another buffer, its whole. The whole stays as long as it has
// ranges, and the block counts for the whole alone. A range has no ranges.
type division struct {
	whole  *Buffer // nil: the buffer is no range
	base   uint64  // of a range: the byte of the whole at which the range begins
	ranges int     // of a whole: how many ranges it has
}

func (b *Buffer) division() (d division) {
	if of := b.ledger().divisions[b.ID]; of != nil {
		d = *of
	}
	return d
}

// Whole returns the buffer of whose memory b is a range; nil: b is no range.
func (b *Buffer) Whole() *Buffer { return b.division().whole }

// Base returns the byte of the block at which the buffer begins.
func (b *Buffer) Base() uint64 { return b.division().base }

// Divided says whether the buffer has ranges.
func (b *Buffer) Divided() bool { return b.division().ranges > 0 }

// AddRange makes a buffer that is a range: n bytes of the buffer `whole`, from its byte `base`. The caller has called [Lease.MayDivide] for a
// lease of `whole`, which returned nil.
func (l *Ledger) AddRange(whole *Buffer, base uint64, t *mempool.Tensor, n uint64, made uint32) *Buffer {
	l.Last.Buffer++
	b := &Buffer{ID: l.Last.Buffer, Generation: whole.Generation, Block: whole.Block, Tensor: t, Bytes: n, Account: whole.Account, Made: made}
	l.putRange(b, whole, base)
	l.Touch(b)
	return b
}

// putRange adds a range to the tables.
func (t *buffers) putRange(b, whole *Buffer, base uint64) {
	t.divisions[b.ID] = &division{whole: whole, base: base}
	if t.divisions[whole.ID] == nil {
		t.divisions[whole.ID] = new(division)
	}
	t.divisions[whole.ID].ranges++
	t.putBuffer(b)
}

// MayDivide says whether the lease's session may make a buffer of n bytes, from the byte `base` on, of the lease's buffer.
//
// Errors: [mempool.ErrInvalid], [mempool.ErrClosed] if the pool is being destroyed, [mempool.ErrLimit].
func (of *Lease) MayDivide(base, n uint64) error {
	b := of.Buffer
	switch {
	case !of.Write:
		return typed.Errorf(mempool.ErrInvalid, "lease %d is a read lease: only a write lease has ranges", of.ID)
	case b.Whole() != nil:
		return typed.Errorf(mempool.ErrInvalid, "buffer %d is a range of buffer %d: ask for a range of that one's lease", b.ID, b.Whole().ID)
	case base > b.Bytes || n > b.Bytes-base:
		return typed.Errorf(mempool.ErrInvalid, "%d bytes at %d reach beyond buffer %d, which has %d bytes", n, base, b.ID, b.Bytes)
	case b.Block.Pool.Closing:
		return b.Block.Pool.Ending()
	}
	return b.ledger().MayAllocate(of.Session)
}

// AddBuffer makes a buffer of n bytes in a leased block that counts for a.
func (l *Ledger) AddBuffer(b *Block, a *Account, t *mempool.Tensor, n uint64, made uint32) *Buffer {
	l.Last.Buffer++
	of := &Buffer{ID: l.Last.Buffer, Generation: b.Generation, Block: b, Tensor: t, Bytes: n, Account: a, Made: made}
	l.putBuffer(of)
	l.Touch(of)
	return of
}

// putBuffer adds a buffer to the table, and to what its pool has. A range uses no more bytes.
func (t *buffers) putBuffer(b *Buffer) {
	t.Buffers.Set(b.ID, b)
	b.Block.Pool.Has.Buffers++
	if b.Whole() == nil {
		b.Block.Pool.Used += b.Bytes
	}
}

// Unused says whether nothing holds the buffer any more.
func (b *Buffer) Unused() bool {
	return b.Writer == nil && b.Readers.Len() == 0 && b.Names == 0 && b.Frames == 0 && !b.Divided()
}

// RemoveBuffer removes a buffer that nothing holds. If it is a range, RemoveBuffer returns its whole; otherwise its block does not count for the
// buffer's account any more.
func (l *Ledger) RemoveBuffer(b *Buffer) (whole *Buffer) {
	p, t := b.Block.Pool, &l.buffers
	whole = b.Whole()
	l.Touch(b)
	delete(t.divisions, b.ID)
	delete(l.whileUsed, b.ID)
	t.Buffers.Remove(b.ID)
	delete(t.reasons, b.ID)
	delete(t.events, b.ID)
	RemoveKey(&t.published, &t.mostPublished, b.ID)
	p.Has.Buffers--
	if whole != nil {
		if of := t.divisions[whole.ID]; of.ranges == 1 {
			delete(t.divisions, whole.ID)
		} else {
			of.ranges--
		}
		return whole
	}
	p.Used -= b.Bytes
	b.Account.remove(b.Block.Size)
	return nil
}

// Fail marks the buffer as failed. The argument `reason` is the reason that the buffer's producer gave, or "" if the producer died.
func (b *Buffer) Fail(reason string) {
	b.Failed = true
	b.ledger().Touch(b)
	if reason != "" {
		b.ledger().reasons[b.ID] = reason
	}
	b.EndNames()
}

// Incomplete returns the error of a buffer that has failed.
func (b *Buffer) Incomplete() error {
	if b.Block.Place == PlaceLost {
		return typed.Errorf(mempool.ErrProducerDied, "buffer %d is lost: its memory, of kind %s, ended with the process of the service that had allocated it; write it again", b.ID,
			b.Block.Pool.Info.Kind)
	}
	if reason, ok := b.ledger().reasons[b.ID]; ok {
		return typed.Errorf(mempool.ErrContentFailed, "buffer %d is incomplete; its producer says: %s", b.ID, reason)
	}
	return typed.Errorf(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", b.ID)
}

// Available returns nil if the buffer can be leased now, for writing or for reading as `write` says; ErrBusy if such a lease may be possible
// later; and another error if it never will be.
func (b *Buffer) Available(write bool) error {
	switch {
	case b.Failed:
		return b.Incomplete()
	case write && b.Whole() != nil: // another range may overlap it
		return typed.Errorf(mempool.ErrInvalid, "buffer %d is a part of an arena, which only the arena's program writes: lease it for reading, and copy it", b.ID)
	case b.Doubted:
		return typed.Errorf(mempool.ErrBusy, "the session that wrote buffer %d has ended, and it is not known yet whether the buffer is complete", b.ID)
	case b.Writer != nil:
		return typed.Errorf(mempool.ErrBusy, "buffer %d is being written by session %d (pid %d)", b.ID, b.Writer.Session.ID, b.Writer.Session.Peer.PID)
	case write && b.Readers.Len() > 0:
		return typed.Errorf(mempool.ErrBusy, "buffer %d has %s, which a write lease excludes: release them first, or write another buffer", b.ID,
			count.Of(b.Readers.Len(), "read lease"))
	case write && b.Divided():
		return typed.Errorf(mempool.ErrBusy, "ranges of buffer %d are in use, which a write lease excludes: write another buffer", b.ID)
	case write && b.Frames > 0:
		return typed.Errorf(mempool.ErrBusy, "buffer %d is in a channel, whose consumers a write lease excludes: write another buffer", b.ID)
	}
	return nil
}

// Event returns the handle of the interprocess event that came with the buffer's content, or nil.
func (b *Buffer) Event() []byte { return b.ledger().events[b.ID] }

// SetEvent stores the handle of an interprocess event, or removes it if the handle is nil.
func (b *Buffer) SetEvent(handle []byte) {
	l := b.ledger()
	if _, had := l.events[b.ID]; !had && handle == nil {
		return
	}
	l.Touch(b)
	if handle == nil {
		delete(l.events, b.ID)
	} else {
		l.events[b.ID] = handle
	}
}

// SetReady replaces the fences after which the content is complete.
func (b *Buffer) SetReady(ts Fences) {
	if !slices.Equal(b.Ready, ts) {
		b.ledger().Touch(b)
	}
	b.Ready = ts
}

// ReadersOf returns the ids of sessions that have read leases on the buffer, at most [mempool.MaxReaders] of them.
func (b *Buffer) ReadersOf() []uint64 {
	ids := slices.Grow([]uint64(nil), min(b.Readers.Len(), mempool.MaxReaders))
	for l := range b.Readers.All() {
		if len(ids) == mempool.MaxReaders {
			break
		}
		ids = append(ids, l.Session.ID)
	}
	return ids
}

// Holder returns the session with the write lease or the oldest read lease on the buffer, or nil if no session has a lease.
func (b *Buffer) Holder() (s *Session, how string) {
	if b.Writer != nil {
		return b.Writer.Session, "written"
	}
	var oldest *Lease
	for l := range b.Readers.All() {
		if oldest == nil || l.ID < oldest.ID {
			oldest = l
		}
	}
	if oldest == nil {
		return nil, ""
	}
	return oldest.Session, "read"
}

// Fits says whether t can describe the content of the buffer.
func (b *Buffer) Fits(t mempool.Tensor) error {
	need, err := t.Extent()
	if err != nil {
		return err
	}
	if b.Bytes < need {
		return typed.Errorf(mempool.ErrInvalid, "a %s of shape %v needs %s, buffer %d has %s", t.DType, t.Shape, bytesize.Text(need), b.ID,
			bytesize.Text(b.Bytes))
	}
	return nil
}

// Grant makes a lease on a buffer that is available. The argument `wait` has the fences that the session must wait for.
func (l *Ledger) Grant(b *Buffer, s *Session, write bool, wait Fences, began uint32) *Lease {
	l.Last.Lease++
	of := &Lease{ID: l.Last.Lease, Session: s, Buffer: b, Write: write, Began: began, Wait: wait}
	l.putLease(of)
	return of
}

// putLease adds a lease to the tables, to its session and to its buffer.
func (l *Ledger) putLease(of *Lease) {
	if of.Write {
		of.Buffer.Writer = of
	} else {
		of.Buffer.Readers.Add(of)
	}
	of.Session.Leases[of.ID] = of
	l.Touch(of)
	l.Leases.Set(of.ID, of)
	of.Buffer.Block.Pool.Has.Leases++
	l.addReferences(of.Session, of.Wait)
}

// Await changes the fences for which the session of the write lease waits before it uses the memory of ranges again: it adds `more`, and removes
// those for which `over` is true. It removes the timelines that nobody can ask for any more, and returns them.
func (of *Lease) Await(more Fences, over func(mempool.Fence) bool) (gone []*Timeline) {
	l, before := of.Buffer.ledger(), of.Wait
	of.Wait = before.Union(nil).Drop(over).Union(more)
	l.Touch(of)
	l.addReferences(of.Session, of.Wait)
	return l.dropReferences(before)
}

// Demote makes a read lease of a write lease.
func (of *Lease) Demote() {
	of.Buffer.Writer, of.Write = nil, false
	of.Buffer.ledger().Touch(of)
	of.Buffer.Readers.Add(of)
}

// End ends the lease. The buffer stays, even if nothing holds it any more. End returns the timelines that nobody can ask for any more, and
// removes them.
func (of *Lease) End() (gone []*Timeline) {
	b, wait := of.Buffer, of.Wait
	l := b.ledger()
	of.Ended, of.Wait = true, nil
	l.Touch(of)
	RemoveKey(&of.Session.Leases, &of.Session.most.leases, of.ID)
	l.Leases.Remove(of.ID)
	b.Block.Pool.Has.Leases--
	if of.Write {
		b.Writer = nil
	} else {
		b.Readers.Remove(of)
	}
	return l.dropReferences(wait)
}

// Released returns the error of a lease that has ended.
func (of *Lease) Released() error {
	return typed.Errorf(mempool.ErrReleased, "lease %d of session %d has ended", of.ID, of.Session.ID)
}

// Lease finds one of the session's own leases by the lease's id.
//
// Errors: [mempool.ErrReleased].
func (s *Session) Lease(id uint64) (*Lease, error) {
	if l := s.Leases[id]; l != nil {
		return l, nil
	}
	return nil, typed.Errorf(mempool.ErrReleased, "session %d has no lease %d: it has ended, or it is another session's, or it never was", s.ID, id)
}

// WritesIn says whether the session has a write lease in a pool.
func (s *Session) WritesIn(p *Pool) bool {
	for _, l := range s.Leases {
		if l.Write && l.Buffer.Block.Pool == p {
			return true
		}
	}
	return false
}

// VisibleTo says whether a session may see the buffer.
func (b *Buffer) VisibleTo(s *Session) bool { return b.Block.Pool.VisibleTo(s) }

// VisibleTo says whether a session may see the lease.
func (of *Lease) VisibleTo(s *Session) bool { return of.Buffer.VisibleTo(s) }
