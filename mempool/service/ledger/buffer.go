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

	versions map[uint64]uint64 // by id of a buffer that has lost a name: the greatest version that such a name had
}

// AddBuffer makes a buffer of n bytes in a leased block that counts for a.
func (l *Ledger) AddBuffer(b *Block, a *Account, t *mempool.Tensor, n uint64, made uint32) *Buffer {
	l.Last.Buffer++
	of := &Buffer{ID: l.Last.Buffer, Generation: b.Generation, Block: b, Tensor: t, Bytes: n, Account: a, Made: made}
	l.putBuffer(of)
	return of
}

// putBuffer adds a buffer to the tables.
func (t *buffers) putBuffer(b *Buffer) {
	t.Buffers.Set(b.ID, b)
	b.Block.Pool.Has.Buffers++
	b.Block.Pool.Used += b.Bytes
}

// Unused says whether nothing holds the buffer any more.
func (b *Buffer) Unused() bool {
	return b.Writer == nil && b.Readers.Len() == 0 && b.Names == 0 && b.Frames == 0
}

// RemoveBuffer removes a buffer that nothing holds. Its block does not count for the buffer's account any more.
func (l *Ledger) RemoveBuffer(b *Buffer) {
	p, t := b.Block.Pool, &l.buffers
	delete(l.whileUsed, b.ID)
	t.Buffers.Remove(b.ID)
	delete(t.reasons, b.ID)
	delete(t.events, b.ID)
	delete(t.versions, b.ID)
	p.Has.Buffers--
	p.Used -= b.Bytes
	b.Account.remove(b.Block.Size)
}

// Fail marks a buffer as failed. The argument `reason` is the reason that the buffer's producer gave, or "" if the producer died.
func (l *Ledger) Fail(b *Buffer, reason string) {
	b.Failed = true
	if reason != "" {
		l.reasons[b.ID] = reason
	}
	l.EndNames(b)
}

// Incomplete returns the error of a buffer that has failed.
func (t *buffers) Incomplete(b *Buffer) error {
	if reason, ok := t.reasons[b.ID]; ok {
		return typed.Errorf(mempool.ErrContentFailed, "buffer %d is incomplete; its producer says: %s", b.ID, reason)
	}
	return typed.Errorf(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", b.ID)
}

// Available returns nil if the buffer can be leased now, ErrBusy if a later lease may be possible, and another error if no lease will
// ever be possible.
func (t *buffers) Available(b *Buffer, write bool) error {
	switch {
	case b.Failed:
		return t.Incomplete(b)
	case b.Doubted:
		return typed.Errorf(mempool.ErrBusy, "the session that wrote buffer %d has ended, and it is not known yet whether the buffer is complete", b.ID)
	case b.Writer != nil:
		return typed.Errorf(mempool.ErrBusy, "buffer %d is being written by session %d (pid %d)", b.ID, b.Writer.Session.ID, b.Writer.Session.Peer.PID)
	case write && b.Readers.Len() > 0:
		return typed.Errorf(mempool.ErrBusy, "buffer %d has %s, which a write lease excludes: release them first, or write another buffer", b.ID,
			count.Of(b.Readers.Len(), "read lease"))
	case write && b.Frames > 0:
		return typed.Errorf(mempool.ErrBusy, "buffer %d is in a channel, whose consumers a write lease excludes: write another buffer", b.ID)
	}
	return nil
}

// Event returns the handle of the interprocess event that came with the buffer's content, or nil.
func (t *buffers) Event(b *Buffer) []byte { return t.events[b.ID] }

// SetEvent stores the handle of an interprocess event, or removes it if the handle is nil.
func (t *buffers) SetEvent(b *Buffer, handle []byte) {
	if handle == nil {
		delete(t.events, b.ID)
	} else {
		t.events[b.ID] = handle
	}
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
	l.Leases.Set(of.ID, of)
	of.Buffer.Block.Pool.Has.Leases++
	l.addReferences(of.Session, of.Wait)
}

// Demote makes a read lease of a write lease.
func (of *Lease) Demote() {
	of.Buffer.Writer, of.Write = nil, false
	of.Buffer.Readers.Add(of)
}

// EndLease ends a lease. The buffer stays, even if nothing holds it any more. EndLease returns the timelines that nobody can ask for any
// more, and removes them.
func (l *Ledger) EndLease(of *Lease) (gone []*Timeline) {
	b, wait := of.Buffer, of.Wait
	of.Ended, of.Wait = true, nil
	RemoveKey(&of.Session.Leases, &of.Session.most.leases, of.ID)
	l.Leases.Remove(of.ID)
	b.Block.Pool.Has.Leases--
	if of.Write {
		b.Writer = nil
	} else {
		b.Readers.Remove(of)
	}
	for _, f := range wait {
		if t := l.dropReference(l.Timelines[f.Timeline]); t != nil {
			gone = append(gone, t)
		}
	}
	return gone
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

// VisibleTo says whether a session may see the buffer.
func (b *Buffer) VisibleTo(s *Session) bool { return b.Block.Pool.VisibleTo(s) }

// VisibleTo says whether a session may see the lease.
func (of *Lease) VisibleTo(s *Session) bool { return of.Buffer.VisibleTo(s) }
