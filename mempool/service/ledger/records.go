package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file writes a ledger as records, and says which records have changed, so that a ledger survives its process: see [Read]. A record has a
// key, which begins with its table, and fields. Records name each other by id. Sums and indexes are not written: Read computes them anew.

// Version is the version of the records.
const Version = 2

// table says what a record describes. Read makes the records of a table after those of the tables before it.
type table uint8

const (
	inLast table = iota // the greatest ids so far; records with greater ids count, too
	inSessions
	inTimelines
	inPools
	inBlocks
	inDone     // key: session
	inAnswers  // key: session, request
	inShown    // key: timeline, session
	inMappings // key: session, block
	inBuffers
	inLeases
	inNames // key: the name
	inChannels
	inMembers  // key: channel, member
	inRetained // key: channel, buffer
	tables
)

type key struct {
	table table
	a, b  uint64 // ids; b only in tables whose key has two
	text  string // in inNames
}

func (k key) two() bool {
	return k.table == inAnswers || k.table == inShown || k.table == inMappings || k.table >= inMembers
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.table, o.table), cmp.Compare(k.a, o.a), cmp.Compare(k.b, o.b), cmp.Compare(k.text, o.text))
}

func (c *codec) key(k *key) {
	number(c, &k.table)
	if k.table == inNames {
		text(c, &k.text)
		return
	}
	number(c, &k.a)
	if k.two() {
		number(c, &k.b)
	}
}

// record is something of the ledger that is written.
type record interface {
	key() key
	// write writes whether the ledger has the record, with [codec.lives], and its fields if it has.
	write(*codec)
}

// lives writes whether the ledger has a record, and returns it.
func (c *codec) lives(yes bool) bool {
	c.flags(&yes)
	return yes
}

// fields are what is written of a record beside its key.
type fields interface{ code(*codec) }

// fields returns empty fields of a record of a table.
func (t table) fields() fields {
	switch t {
	case inLast:
		return new(LastIDs)
	case inSessions:
		return new(sessionFields)
	case inTimelines:
		return new(timelineFields)
	case inPools:
		return new(poolFields)
	case inBlocks:
		return new(blockFields)
	case inDone, inAnswers:
		return new(numberField)
	case inBuffers:
		return new(bufferFields)
	case inLeases:
		return new(leaseFields)
	case inNames:
		return new(nameFields)
	case inChannels:
		return new(channelFields)
	case inMembers:
		return new(memberFields)
	case inRetained:
		return new(retainedFields)
	}
	return noFields{}
}

type noFields struct{}

func (noFields) code(*codec) {}

// changes has the records that have changed and that AppendChanges has not written.
type changes struct {
	noting  bool // somebody wants to know
	touched []record
	codec   codec // of AppendChanges
}

// NoteChanges makes the ledger note the records that change from now on, for [Ledger.AppendChanges].
func (cs *changes) NoteChanges() { cs.noting = true }

// Touch notes that a record has changed, was added or was removed. A caller that changes a field of a record calls it before the ledger's lock is
// released.
func (cs *changes) Touch(r record) {
	if !cs.noting {
		return
	}
	for i := len(cs.touched) - 1; i >= max(0, len(cs.touched)-8); i-- { // usually a request changes a record several times
		if cs.touched[i] == r {
			return
		}
	}
	cs.touched = append(cs.touched, r)
}

// AppendChanges appends what has changed since the last call. [Records.Apply] reads it.
func (cs *changes) AppendChanges(dst []byte) []byte {
	c := &cs.codec
	c.data = dst
	for _, r := range cs.touched {
		c.record(r)
	}
	clear(cs.touched)
	if cs.touched = cs.touched[:0]; cap(cs.touched) > 1<<16 {
		cs.touched = nil
	}
	dst, c.data = c.data, nil
	return dst
}

func (c *codec) record(r record) {
	k := r.key()
	c.key(&k)
	r.write(c)
}

// AppendAll appends all records. It calls `full` with what it has appended whenever that has 64 KiB or more, and goes on with what `full`
// returns.
func (l *Ledger) AppendAll(dst []byte, full func([]byte) []byte) []byte {
	c := codec{data: dst}
	l.each(func(r record) {
		if c.record(r); len(c.data) >= 64<<10 {
			c.data = full(c.data)
		}
	})
	return c.data
}

// each calls `f` with each record that is written.
func (l *Ledger) each(f func(record)) {
	f(&l.Last)
	sessions, pools := make(map[*Session]struct{}), make(map[*Pool]struct{})
	member := func(m *Member) {
		f(m)
		sessions[m.Session] = struct{}{}
	}
	for ch := range l.Channels.All() {
		f(ch)
		pools[ch.Pool] = struct{}{}
		for _, m := range ch.Members {
			member(m)
		}
		for b, producers := range ch.Retained {
			f(retainedBy{ch, b})
			for _, m := range producers {
				if ch.Members[m.ID] != m {
					member(m)
				}
			}
		}
	}
	for _, t := range l.Timelines {
		f(t)
		sessions[t.Session] = struct{}{}
		for s := range t.Shown {
			f(showing{t, s})
		}
	}
	for _, of := range []*Index[uint64, *Session]{&l.Sessions, &l.Ended} {
		for s := range of.All() {
			sessions[s] = struct{}{}
			for _, b := range s.Mapped {
				f(mapping{s, b})
			}
			f(doneBy{s})
			for _, a := range s.Answers {
				f(a)
			}
		}
	}
	for s := range sessions {
		f(s)
	}
	for _, p := range l.Pools {
		pools[p] = struct{}{}
	}
	for p := range pools {
		f(p)
	}
	for b := range l.Blocks.All() {
		f(b)
	}
	for b := range l.Buffers.All() {
		f(b)
	}
	for of := range l.Leases.All() {
		f(of)
	}
	for text := range l.Names.After("") {
		f(namedBy{l, text})
	}
}

// Records are the records of a ledger as they are written. The zero Records has none.
type Records struct {
	all  map[key][]byte // their fields
	last LastIDs
}

// Len returns the number of records.
func (rs *Records) Len() int { return len(rs.all) }

// Apply changes the records as AppendChanges or AppendAll has written.
//
// Errors: [mempool.ErrInvalid] if `changes` are something else.
func (rs *Records) Apply(changes []byte) error {
	if rs.all == nil {
		rs.all = make(map[key][]byte)
	}
	for c := (codec{data: changes, reads: true}); len(c.data) > 0; {
		var k key
		var lives bool
		c.key(&k)
		c.flags(&lives)
		before := c.data
		if lives && k.table < tables {
			of := k.table.fields()
			if of.code(&c); k.table == inLast {
				rs.last.raise(*of.(*LastIDs))
			}
		}
		if c.bad || k.table >= tables {
			return typed.Errorf(mempool.ErrInvalid, "there is no record in the %d bytes before the end", len(changes)-len(before))
		}
		if id := rs.last.of(k.table); id != nil {
			*id = max(*id, k.a)
		}
		if delete(rs.all, k); lives && k.table != inLast {
			rs.all[k] = bytes.Clone(before[:len(before)-len(c.data)])
		}
	}
	return nil
}

// Written returns all records of the ledger as they are written.
func (l *Ledger) Written() *Records {
	rs := new(Records)
	add := func(data []byte) []byte {
		if err := rs.Apply(data); err != nil {
			panic(err)
		}
		return data[:0]
	}
	add(l.AppendAll(nil, add))
	return rs
}

// Differs says how records differ from those that they should be; "" if they do not.
func (rs *Records) Differs(from *Records) string {
	if rs.last != from.last {
		return fmt.Sprintf("the greatest ids are %+v, not %+v", rs.last, from.last)
	}
	for k, want := range from.all {
		if have, there := rs.all[k]; !there || !bytes.Equal(have, want) {
			return fmt.Sprintf("%v is %s, not %s", k, k.table.show(have, there), k.table.show(want, true))
		}
	}
	for k := range rs.all {
		if _, there := from.all[k]; !there {
			return fmt.Sprintf("%v is there, and should not be", k)
		}
	}
	return ""
}

// show returns the fields of a record for people.
func (t table) show(data []byte, there bool) string {
	if !there {
		return "missing"
	}
	of := t.fields()
	of.code(&codec{data: data, reads: true})
	return fmt.Sprintf("%+v", of)
}

func (k key) String() string {
	return fmt.Sprintf("%s %d.%d%s", [...]string{"last", "session", "timeline", "pool", "block", "done", "answer", "shown", "mapping", "buffer", "lease", "name ", "channel", "member", "retained"}[k.table],
		k.a, k.b, k.text)
}

// of returns the greatest id of a table's records; nil if they have no ids of their own.
func (l *LastIDs) of(t table) *uint64 {
	switch t {
	case inSessions:
		return &l.Session
	case inTimelines:
		return &l.Timeline
	case inPools:
		return &l.Pool
	case inBlocks:
		return &l.Block
	case inBuffers:
		return &l.Buffer
	case inLeases:
		return &l.Lease
	case inChannels:
		return &l.Channel
	}
	return nil
}

func (l *LastIDs) raise(o LastIDs) {
	for t := range tables {
		if id := l.of(t); id != nil {
			*id = max(*id, *o.of(t))
		}
	}
	l.Event = max(l.Event, o.Event)
}

func (l *LastIDs) key() key { return key{table: inLast} }

func (l *LastIDs) write(c *codec) {
	c.lives(true)
	l.code(c)
}

func (l *LastIDs) code(c *codec) {
	for t := range tables {
		if id := l.of(t); id != nil {
			number(c, id)
		}
	}
	number(c, &l.Event)
}

type sessionFields struct {
	Peer                    mempool.Peer
	Owner, Ended, Forgotten bool
	Program                 string
	Began                   time.Time
	Token                   mempool.Epoch
}

func (s *Session) key() key { return key{table: inSessions, a: s.ID} }

func (s *Session) write(c *codec) {
	if c.lives(!s.forgotten || s.holders > 0) {
		(&sessionFields{s.Peer, s.Owner, s.Ended, s.forgotten, s.Program, s.Began, s.Token}).code(c)
	}
}

func (e *sessionFields) code(c *codec) {
	c.peer(&e.Peer)
	c.flags(&e.Owner, &e.Ended, &e.Forgotten) // forgotten: only members and timelines refer to the session
	text(c, &e.Program)
	c.time(&e.Began)
	token := e.Token[:]
	if text(c, &token); len(token) == len(e.Token) {
		e.Token = mempool.Epoch(token)
	} else {
		c.fail()
	}
}

type numberField struct{ N uint64 }

func (e *numberField) code(c *codec) { number(c, &e.N) }

type doneBy struct{ s *Session }

func (d doneBy) key() key { return key{table: inDone, a: d.s.ID} }

func (d doneBy) write(c *codec) {
	if c.lives(!d.s.Ended && d.s.Done > 0) {
		(&numberField{d.s.Done}).code(c)
	}
}

func (a *Answer) key() key { return key{table: inAnswers, a: a.session.ID, b: uint64(a.request)} }

func (a *Answer) write(c *codec) {
	if c.lives(a.session.Answers[a.request] == a && !a.session.Ended) {
		(&numberField{a.From}).code(c)
	}
}

type timelineFields struct {
	File                  uint64
	Session               uint64
	Sealed, Dead, Unknown bool
	Promised              []uint64
}

func (t *Timeline) key() key { return key{table: inTimelines, a: t.ID} }

func (t *Timeline) write(c *codec) {
	if c.lives(t.ledger.Timelines[t.ID] == t) {
		(&timelineFields{t.File, t.Session.ID, t.Sealed, t.Dead, t.Unknown, t.Promised}).code(c)
	}
}

func (e *timelineFields) code(c *codec) {
	number(c, &e.File)
	number(c, &e.Session)
	c.flags(&e.Sealed, &e.Dead, &e.Unknown)
	list(c, &e.Promised, number)
}

// showing says that a timeline is shown to a session.
type showing struct {
	t *Timeline
	s *Session
}

func (sh showing) key() key { return key{table: inShown, a: sh.t.ID, b: sh.s.ID} }

func (sh showing) write(c *codec) {
	_, shown := sh.t.Shown[sh.s]
	c.lives(shown && sh.t.ledger.Timelines[sh.t.ID] == sh.t)
}

type poolFields struct {
	File                     uint64
	Info                     mempool.PoolInfo
	Granularity              uint64
	Maker                    uint32
	UIDs, GIDs               []uint32
	Closing, Closed, Removed bool
}

func (p *Pool) key() key { return key{table: inPools, a: p.Info.ID} }

func (p *Pool) write(c *codec) {
	if there := p.ledger.Pools[p.Info.ID] == p; c.lives(there || p.Channels > 0) {
		(&poolFields{p.File, p.Info, p.Granularity, p.Maker, p.Access.UIDs, p.Access.GIDs, p.Closing, p.Closed, !there}).code(c)
	}
}

func (e *poolFields) code(c *codec) {
	number(c, &e.File)
	c.pool(&e.Info)
	number(c, &e.Granularity)
	number(c, &e.Maker)
	list(c, &e.UIDs, number)
	list(c, &e.GIDs, number)
	c.flags(&e.Closing, &e.Closed, &e.Removed) // removed: only channels refer to the pool
}

type blockFields struct {
	Pool, Size, Generation uint64
	Place                  uint64
	Export                 []byte
	Holds                  int32
	State                  BlockState
	Fences                 Fences
	Left                   []uint64 // sessions
	Since                  uint64
}

func (b *Block) key() key { return key{table: inBlocks, a: b.ID} }

func (b *Block) write(c *codec) {
	if !c.lives(b.Pool.ledger.Blocks.Get(b.ID) == b) {
		return
	}
	e := blockFields{Pool: b.Pool.Info.ID, Size: b.Size, Generation: b.Generation, Place: b.Place, Export: b.Pool.ledger.Exports[b.ID], Holds: b.Holds, State: b.State,
		Fences: b.Fences}
	if b.kept != nil {
		e.Since = b.kept.since
		for s := range b.kept.left.All() {
			e.Left = append(e.Left, s.ID)
		}
		slices.Sort(e.Left)
	}
	e.code(c)
}

func (e *blockFields) code(c *codec) {
	number(c, &e.Pool)
	number(c, &e.Size)
	number(c, &e.Generation)
	number(c, &e.Place)
	text(c, &e.Export)
	number(c, &e.Holds)
	number(c, &e.State)
	c.fences(&e.Fences)
	list(c, &e.Left, number)
	number(c, &e.Since)
}

// mapping says that a session maps a block.
type mapping struct {
	s *Session
	b *Block
}

func (m mapping) key() key       { return key{table: inMappings, a: m.s.ID, b: m.b.ID} }
func (m mapping) write(c *codec) { c.lives(m.s.Mapped[m.b.ID] == m.b) }

type bufferFields struct {
	Block, Bytes, Generation uint64
	Tensor                   mempool.Tensor
	Session                  uint64 // of the account
	UID                      uint32 // of the account
	Frames                   int32
	Ready                    Fences
	Failed, Doubted          bool
	Made                     uint32
	Reason                   string
	Event                    []byte
	Published                string // name of the newest publication
	Version                  uint64 // of the newest publication
	Lost                     uint64
	Whole, Base              uint64 // of a range; 0: it is none
}

func (b *Buffer) key() key { return key{table: inBuffers, a: b.ID} }

func (b *Buffer) write(c *codec) {
	l := b.Block.Pool.ledger
	if !c.lives(l.Buffers.Get(b.ID) == b) {
		return
	}
	e := bufferFields{b.Block.ID, b.Bytes, b.Generation, *b.Tensor, b.Account.session, b.Account.uid, b.Frames, b.Ready, b.Failed, b.Doubted, b.Made, "", nil, "", 0, 0, 0, b.Base()}
	if whole := b.Whole(); whole != nil {
		e.Whole = whole.ID
	}
	if len(l.reasons)+len(l.events)+len(l.published) > 0 {
		p := l.published[b.ID]
		e.Reason, e.Event, e.Published, e.Version, e.Lost = l.reasons[b.ID], l.events[b.ID], p.name, p.version, p.lost
	}
	e.code(c)
}

func (e *bufferFields) code(c *codec) {
	number(c, &e.Block)
	number(c, &e.Bytes)
	number(c, &e.Generation)
	c.tensor(&e.Tensor)
	number(c, &e.Session)
	number(c, &e.UID)
	number(c, &e.Frames)
	c.fences(&e.Ready)
	c.flags(&e.Failed, &e.Doubted)
	number(c, &e.Made)
	text(c, &e.Reason)
	text(c, &e.Event)
	text(c, &e.Published)
	number(c, &e.Version)
	number(c, &e.Lost)
	number(c, &e.Whole)
	number(c, &e.Base)
}

type leaseFields struct {
	Session, Buffer uint64
	Write           bool
	Began           uint32
	Wait            Fences
}

func (of *Lease) key() key { return key{table: inLeases, a: of.ID} }

func (of *Lease) write(c *codec) {
	if c.lives(!of.Ended) {
		(&leaseFields{of.Session.ID, of.Buffer.ID, of.Write, of.Began, of.Wait}).code(c)
	}
}

func (e *leaseFields) code(c *codec) {
	number(c, &e.Session)
	number(c, &e.Buffer)
	c.flags(&e.Write)
	number(c, &e.Began)
	c.fences(&e.Wait)
}

type nameFields struct {
	Buffer    uint64
	UID       uint32
	Owner     uint64 // session; 0: none
	Version   uint64
	WhileUsed bool
}

// namedBy is what has a name now. Another record may have had the name before.
type namedBy struct {
	l    *Ledger
	text string
}

func (n namedBy) key() key { return key{table: inNames, text: n.text} }

func (n namedBy) write(c *codec) {
	of := n.l.Names.Get(n.text)
	if !c.lives(of != nil) {
		return
	}
	e := nameFields{Buffer: of.Buffer.ID, UID: of.UID, Version: of.Version, WhileUsed: of.WhileUsed}
	if of.Owner != nil {
		e.Owner = of.Owner.ID
	}
	e.code(c)
}

func (e *nameFields) code(c *codec) {
	number(c, &e.Buffer)
	number(c, &e.UID)
	number(c, &e.Owner)
	number(c, &e.Version)
	c.flags(&e.WhileUsed)
}

type channelFields struct {
	Spec                             mempool.ChannelSpec
	UID                              uint32
	Closed                           bool
	LastMember                       uint64
	RosterFile, SequencerFile, First uint64
	Alone                            time.Time
}

func (ch *Channel) key() key { return key{table: inChannels, a: ch.Info.ID} }

func (ch *Channel) write(c *codec) {
	if c.lives(ch.Pool.ledger.Channels.Get(ch.Info.ID) == ch) {
		(&channelFields{ch.Info.ChannelSpec, ch.UID, ch.Closed, ch.LastMember, ch.RosterFile, ch.SequencerFile, ch.First, ch.Alone}).code(c)
	}
}

func (e *channelFields) code(c *codec) {
	c.channel(&e.Spec)
	number(c, &e.UID)
	c.flags(&e.Closed)
	number(c, &e.LastMember)
	number(c, &e.RosterFile)
	number(c, &e.SequencerFile)
	number(c, &e.First)
	c.time(&e.Alone)
}

type memberFields struct {
	Session                             uint64
	Seat                                int
	Role                                MemberRole
	Full                                mempool.FullPolicy
	Timeline                            uint64 // 0: none
	File                                uint64
	Oldest                              bool
	Gone, Reserved, Entered, Left, Said bool // gone: it has no seat any more, and the channel retains buffers of it
}

func (m *Member) key() key { return key{table: inMembers, a: m.Channel.Info.ID, b: m.ID} }

func (m *Member) write(c *codec) {
	seated := m.Channel.Members[m.ID] == m
	if !c.lives(seated || m.retained > 0) {
		return
	}
	e := memberFields{Session: m.Session.ID, Seat: m.Seat, Role: m.Role, Full: m.Full, File: m.File, Oldest: m.Oldest, Gone: !seated, Reserved: m.Reserved, Entered: m.Entered, Left: m.Left, Said: m.Said}
	if m.Timeline != nil && seated {
		e.Timeline = m.Timeline.ID
	}
	e.code(c)
}

func (e *memberFields) code(c *codec) {
	number(c, &e.Session)
	number(c, &e.Seat)
	text(c, &e.Role)
	text(c, &e.Full)
	number(c, &e.Timeline)
	number(c, &e.File)
	c.flags(&e.Oldest, &e.Gone, &e.Reserved, &e.Entered, &e.Left, &e.Said)
}

// retainedBy is a buffer that a channel retains.
type retainedBy struct {
	ch *Channel
	b  *Buffer
}

type retainedFields struct{ Producers []uint64 } // members

func (k retainedBy) key() key { return key{table: inRetained, a: k.ch.Info.ID, b: k.b.ID} }

func (k retainedBy) write(c *codec) {
	producers, retained := k.ch.Retained[k.b]
	if !c.lives(retained) {
		return
	}
	var e retainedFields
	for _, m := range producers {
		e.Producers = append(e.Producers, m.ID)
	}
	e.code(c)
}

func (e *retainedFields) code(c *codec) { list(c, &e.Producers, number) }
