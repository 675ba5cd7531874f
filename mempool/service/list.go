package service

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file tells what the service has, page by page: the service's own user everything, others what they may use.

// Page is one page of a list.
type Page[T any] struct {
	Entries []T
	// Next is where the next page begins; empty: this is the last.
	Next string
}

// Introduce notes what a client calls itself, for people: as much as a name has, so that a page of a list holds it. It is called once.
func (s *Session) Introduce(program string) {
	if len(program) > mempool.MaxNameBytes {
		program = strings.ToValidUTF8(program[:mempool.MaxNameBytes], "")
	}
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	s.program = program
}

// Sessions lists the sessions of the asking session's user, and for the service's own user all, by id.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Sessions(after string, most int) (Page[mempool.SessionInfo], error) {
	may := func(other *Session) bool { return other.peer.UID == s.peer.UID || s.owner() }
	return listByID(s, func() iter.Seq2[uint64, *Session] { return maps.All(s.svc.sessions) }, after, most, may, (*Session).info)
}

// info describes the session. Service.mu is held.
func (s *Session) info() mempool.SessionInfo {
	info := mempool.SessionInfo{ID: s.id, UID: s.peer.UID, PID: s.peer.PID, Program: s.program, Began: s.began,
		Leases: len(s.leases), Blocks: len(s.mapped), Members: len(s.members)}
	for _, a := range s.accounts {
		info.Bytes += a.bytes
	}
	info.Waits = len(s.waits)
	info.WaitsFor, info.Since = s.waitsFor()
	return info
}

// Channels lists all channels, those that are closed and still have consumers included, by id.
func (s *Service) Channels() []mempool.ChannelStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]mempool.ChannelStatus, 0, len(s.channelByID))
	for _, ch := range s.channelByID {
		list = append(list, ch.status())
	}
	slices.SortFunc(list, func(a, b mempool.ChannelStatus) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Channels lists the channels that the asking session may use, those that are closed and still have consumers included, by id.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Channels(after string, most int) (Page[mempool.ChannelStatus], error) {
	may := func(ch *channel) bool { return s.sees(ch.pool) }
	return listByID(s, func() iter.Seq2[uint64, *channel] { return maps.All(s.svc.channelByID) }, after, most, may, (*channel).status)
}

// status describes the channel. Service.mu is held.
func (ch *channel) status() mempool.ChannelStatus {
	status := mempool.ChannelStatus{ChannelInfo: ch.info, UID: ch.uid, Closed: ch.closed, Published: ch.host.Published(), Waiting: ch.host.Waiting()}
	for _, m := range ch.members {
		switch {
		case !m.entered || m.left:
		case m.role() == Producer:
			status.Producers++
		default:
			status.Consumers++
			if n := ch.host.Behind(m.Member); n > status.Waiting {
				status.Waiting, status.Slowest = n, m.session.id
			}
		}
	}
	return status
}

// Buffers lists the buffers of the pools that the asking session may use, by id.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Buffers(after string, most int) (Page[mempool.BufferInfo], error) {
	may := func(b *buffer) bool { return s.sees(b.block.pool) }
	all := func() iter.Seq2[uint64, *buffer] { return maps.All(s.svc.buffers) }
	return listByID(s, all, after, most, may, func(b *buffer) mempool.BufferInfo {
		info := mempool.BufferInfo{ID: b.id, Generation: b.generation, Pool: b.block.pool.info.ID, Bytes: b.bytes, BlockBytes: b.block.size,
			Tensor: b.tensor.Clone(), Reads: b.readers.len(), Names: int(b.names), InChannel: b.frames > 0,
			Readers: b.readersOf()}
		if b.writer != nil {
			info.Writer = b.writer.session.id
		}
		return info
	})
}

// readersOf are sessions that have read leases, at most [mempool.MaxReaders]. Service.mu is held.
func (b *buffer) readersOf() (ids []uint64) {
	for l := range b.readers.all() {
		if len(ids) == mempool.MaxReaders {
			break
		}
		ids = append(ids, l.session.id)
	}
	return ids
}

// Names lists the names in the pools that the asking session may use, in their order.
//
// Errors: [mempool.ErrInvalid].
func (s *Session) Names(after string, most int) (Page[mempool.NameInfo], error) {
	may := func(n *name) bool { return s.sees(n.buffer.block.pool) }
	all := func() iter.Seq2[string, *name] { return maps.All(s.svc.names) }
	return list(s, all, after, most, may, func(text string) string { return text }, func(n *name) mempool.NameInfo {
		b := n.buffer
		info := mempool.NameInfo{Name: n.text, Buffer: b.id, Pool: b.block.pool.info.ID, Bytes: b.bytes, Tensor: b.tensor.Clone(), UID: n.uid}
		if n.owner != nil {
			info.Session = n.owner.id
		}
		return info
	})
}

// Leases lists the leases on buffers of the pools that the asking session may use, by id.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Leases(after string, most int) (Page[mempool.LeaseStatus], error) {
	svc := s.svc
	all := func() iter.Seq2[uint64, *Lease] {
		return func(yield func(uint64, *Lease) bool) {
			for _, other := range svc.sessions {
				for id, l := range other.leases {
					if !yield(id, l) {
						return
					}
				}
			}
		}
	}
	may := func(l *Lease) bool { return s.sees(l.buffer.block.pool) }
	type awaited struct {
		what  string
		since time.Time
	}
	waits := make(map[*Session]awaited)
	return listByID(s, all, after, most, may, func(l *Lease) mempool.LeaseStatus {
		b, holder := l.buffer, l.session
		status := mempool.LeaseStatus{ID: l.id, Session: holder.id, UID: holder.peer.UID, PID: holder.peer.PID, Program: holder.program, Buffer: b.id,
			Pool: b.block.pool.info.ID, Bytes: b.bytes, BlockBytes: b.block.size, Write: l.write, Began: svc.began.Add(time.Duration(l.began) * time.Second)}
		w, known := waits[holder]
		if !known {
			w.what, w.since = holder.waitsFor()
			waits[holder] = w
		}
		status.WaitsFor, status.Since = w.what, w.since
		return status
	})
}

// waitsFor says what the session has waited for longest, and since when. A producer does not ask the service for room in a channel: that it
// waits for some is told by how far behind a consumer is that producers wait for. Service.mu is held.
func (s *Session) waitsFor() (what string, since time.Time) {
	if w := s.longest(); w != nil {
		what, since = w.String(), w.since
	}
	for m := range s.members {
		if m.role() != Producer || !m.entered || m.left || m.channel.closed {
			continue
		}
		if slow := m.channel.slow(); slow != nil && (what == "" || slow.behind.since.Before(since)) {
			what, since = fmt.Sprintf("room in channel %q (session %d is behind)", m.channel.info.Name, slow.session.id), slow.behind.since
		}
	}
	return cut(what, maxWaitText), since
}

// slow is the consumer of a broadcast that producers have waited for longest; nil: they wait for none. Service.mu is held.
func (ch *channel) slow() (slow *member) {
	for _, m := range ch.members {
		if m.full != mempool.Block {
			continue
		}
		if _, most := m.lags(); most && (slow == nil || m.behind.since.Before(slow.behind.since) || m.behind.since.Equal(slow.behind.since) && m.ID < slow.ID) {
			slow = m
		}
	}
	return slow
}

// Texts are cut to so many bytes, for pages to hold them: of what a session waits for, and of what happened.
const (
	maxWaitText  = 300
	maxEventText = 1000
)

// cut is a text without what is too much.
func cut(text string, most int) string {
	const dots = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}

// owner says whether the session is one of the service's own user.
func (s *Session) owner() bool { return s.peer.UID == s.svc.uid }

// sees says whether the session is told what is in a pool.
func (s *Session) sees(p *Pool) bool { return s.owner() || p.access.Allows(s.peer) }

// listByID is list of what has ids.
func listByID[V listed, T any](s *Session, all func() iter.Seq2[uint64, V], after string, most int, may func(V) bool,
	describe func(V) T) (Page[T], error) {
	from := uint64(0)
	if after != "" {
		var err error
		if from, err = strconv.ParseUint(after, 10, 64); err != nil {
			return Page[T]{}, situation.Of(mempool.ErrInvalid, "%q is no cursor: expected what the page before gave", after)
		}
	}
	return list(s, all, from, most, may, func(id uint64) string { return strconv.FormatUint(id, 10) }, describe)
}

// listed is what a service has until it is gone.
type listed interface{ gone() bool }

func (s *Session) gone() bool  { return s.ended }
func (ch *channel) gone() bool { return ch.pool.svc.channelByID[ch.info.ID] != ch }
func (b *buffer) gone() bool   { return b.block.pool.svc.buffers[b.id] != b }
func (n *name) gone() bool     { return n.buffer.block.pool.svc.names[n.text] != n }
func (l *Lease) gone() bool    { return l.session.leases[l.id] != l }

const (
	listPause  = 512         // how many entries a look passes before it lets others have Service.mu
	listWindow = 4096        // how many entries are kept for the next pages
	listKept   = time.Second // for so long
)

// window has entries of a list for its next pages: to find them, a look passes everything that there is.
type window[K cmp.Ordered, V listed] struct {
	after   K // the cursor that it begins after
	entries []listEntry[K, V]
	more    bool // there are others after these
	at      time.Time
}

type listEntry[K cmp.Ordered, V listed] struct {
	key   K
	value V
}

// from returns the entries after a key; false: the window has too few of them.
func (w *window[K, V]) from(after K, most int) ([]listEntry[K, V], bool) {
	i, found := slices.BinarySearchFunc(w.entries, after, func(e listEntry[K, V], key K) int { return cmp.Compare(e.key, key) })
	if found {
		i++
	}
	return w.entries[i:], len(w.entries)-i > most || !w.more
}

// list describes the most entries that have the least keys greater than after, of those that may be seen. all is called, and gone through, with
// Service.mu held, but not all the time: what comes and goes meanwhile may be missing.
func list[K cmp.Ordered, V listed, T any](s *Session, all func() iter.Seq2[K, V], after K, most int, may func(V) bool, cursor func(K) string,
	describe func(V) T) (page Page[T], err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if err := s.alive(); err != nil {
		return page, err
	}
	var first K
	w, known := s.listing.(*window[K, V])
	var found []listEntry[K, V]
	enough := known && after != first && after >= w.after && time.Since(w.at) < listKept
	if enough {
		found, enough = w.from(after, most)
	}
	if !enough {
		w = look(svc, all, after, may)
		s.listing = w
		found = w.entries
	}
	more := w.more
	if len(found) > most {
		found, more = found[:most], true
	}
	if more {
		page.Next = cursor(found[len(found)-1].key)
	}
	for _, e := range found {
		if !e.value.gone() {
			page.Entries = append(page.Entries, describe(e.value))
		}
	}
	return page, nil
}

// look finds the entries after a key. One look is taken at a time. Service.mu is held, and released meanwhile.
func look[K cmp.Ordered, V listed](svc *Service, all func() iter.Seq2[K, V], after K, may func(V) bool) *window[K, V] {
	svc.mu.Unlock()
	svc.looking.Lock()
	defer svc.looking.Unlock()
	svc.mu.Lock()
	var found []listEntry[K, V]
	passed := 0
	for key, value := range all() {
		if passed++; passed%listPause == 0 {
			svc.mu.Unlock()
			runtime.Gosched() // those who wait for the lock go first
			svc.mu.Lock()
		}
		if key > after && !value.gone() && may(value) {
			found = append(found, listEntry[K, V]{key, value})
		}
	}
	svc.mu.Unlock()
	slices.SortFunc(found, func(a, b listEntry[K, V]) int { return cmp.Compare(a.key, b.key) })
	w := &window[K, V]{after: after, entries: slices.Clone(found[:min(len(found), listWindow)]), more: len(found) > listWindow, at: time.Now()}
	svc.mu.Lock()
	return w
}
