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

// This file lists what the service has, page by page. A session of the service's own user sees everything, others what they may use.

// Page is one page of a list.
type Page[T any] struct {
	Entries []T
	// Next is the cursor of the next page; empty: this is the last one.
	Next string
}

// Introduce notes what a client calls itself, for people, cut to the length of a name so that it fits into a page of a list. It is called
// once.
func (s *Session) Introduce(program string) {
	if len(program) > mempool.MaxNameBytes {
		program = strings.ToValidUTF8(program[:mempool.MaxNameBytes], "")
	}
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	s.program = program
}

// Sessions lists the sessions of the asking session's user by id. The service's own user gets all.
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

// Channels lists the channels that the asking session may use by id, including closed ones that still have consumers.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Channels(after string, most int) (Page[mempool.ChannelStatus], error) {
	may := func(ch *channel) bool { return s.sees(ch.pool) }
	return listByID(s, func() iter.Seq2[uint64, *channel] { return maps.All(s.svc.channelByID) }, after, most, may, (*channel).status)
}

// status describes the channel. Service.mu is held.
func (ch *channel) status() mempool.ChannelStatus {
	status := mempool.ChannelStatus{ChannelInfo: ch.info, UID: ch.uid, Closed: ch.closed, Published: ch.host.Published(), Waiting: ch.host.Waiting(),
		Used: ch.host.Used(), Dropped: ch.host.Dropped()}
	needs := uint64(0)
	for _, m := range ch.members {
		switch {
		case !m.entered || m.left:
		case m.role() == Producer:
			status.Producers++
		default:
			status.Consumers++
			behind, need := ch.host.Behind(m.Member), ch.host.Needs(m.Member)
			status.Waiting = max(status.Waiting, behind)
			if late := behind > 0 || need == uint64(ch.info.Capacity); late && need > needs {
				needs, status.Slowest = need, m.session.id
			}
		}
	}
	return status
}

// Buffers lists the buffers of the pools that the asking session may use, by id.
//
// Errors: [mempool.ErrInvalid] for a cursor that no page gave.
func (s *Session) Buffers(after string, most int) (Page[mempool.BufferInfo], error) {
	may := func(b *buffer) bool { return s.owner() || s.sees(b.block.pool) } // a look at the pool of each takes longer than the rest
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

// readersOf returns sessions that have read leases, at most [mempool.MaxReaders]. Service.mu is held.
func (b *buffer) readersOf() (ids []uint64) {
	for l := range b.readers.all() {
		if len(ids) == mempool.MaxReaders {
			break
		}
		ids = append(ids, l.session.id)
	}
	return ids
}

// Names lists the names in the pools that the asking session may use, in alphabetical order.
//
// Errors: [mempool.ErrInvalid].
func (s *Session) Names(after string, most int) (Page[mempool.NameInfo], error) {
	may := func(n *name) bool { return s.owner() || s.sees(n.buffer.block.pool) } // a look at the pool of each takes longer than the rest
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
	may := func(l *Lease) bool { return s.owner() || s.sees(l.buffer.block.pool) } // a look at the pool of each takes longer than the rest
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

// waitsFor says what the session has waited for longest, and since when. A producer does not ask the service for room in a channel:
// it waits while the channel is full. Service.mu is held.
func (s *Session) waitsFor() (what string, since time.Time) {
	if w := s.longest(); w != nil {
		what, since = w.String(), w.since
	}
	for m := range s.members {
		if m.role() != Producer || !m.entered || m.left || m.channel.closed {
			continue
		}
		if why, full := m.channel.blocked(); why != "" && (what == "" || full.Before(since)) {
			what, since = fmt.Sprintf("room in channel %q (%s)", m.channel.info.Name, why), full
		}
	}
	return cut(what, maxWaitText), since
}

// blocked says why producers of the channel wait for room, and since when; empty: they do not. Service.mu is held.
func (ch *channel) blocked() (why string, since time.Time) {
	if ch.info.Full == mempool.Block && ch.stuck() {
		return "its frames wait for a consumer", ch.full.since
	}
	if slow := ch.slow(); slow != nil {
		return fmt.Sprintf("session %d is behind", slow.session.id), slow.behind.since
	}
	return "", since
}

// slow is the consumer of a broadcast that producers have waited for longest; nil: they wait for none. Service.mu is held.
func (ch *channel) slow() (slow *member) {
	for _, m := range ch.members {
		if m.full != mempool.Block {
			continue
		}
		if m.lags() && (slow == nil || m.behind.since.Before(slow.behind.since) || m.behind.since.Equal(slow.behind.since) && m.ID < slow.ID) {
			slow = m
		}
	}
	return slow
}

// Texts are cut to so many bytes, so that they fit into a page: what a session waits for, and the text of an event.
const (
	maxWaitText  = 300
	maxEventText = 1000
)

// cut shortens a text to at most most bytes.
func cut(text string, most int) string {
	const dots = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}

// owner says whether the session is one of the service's own user.
func (s *Session) owner() bool { return s.peer.UID == s.svc.uid }

// sees says whether the session may see what is in a pool.
func (s *Session) sees(p *Pool) bool { return s.owner() || p.access.Allows(s.peer) }

// listByID is list for things that have ids.
func listByID[V listed, T any](s *Session, all func() iter.Seq2[uint64, V], after string, most int, may func(V) bool,
	describe func(V) T) (Page[T], error) {
	from := uint64(0)
	if after != "" {
		var err error
		if from, err = strconv.ParseUint(after, 10, 64); err != nil {
			return Page[T]{}, situation.Of(mempool.ErrInvalid, "%q is no cursor: expected the one that came with the page before", after)
		}
	}
	return list(s, all, from, most, may, func(id uint64) string { return strconv.FormatUint(id, 10) }, describe)
}

// listed is a thing that lists have entries of. gone says that the service has removed it.
type listed interface{ gone() bool }

func (s *Session) gone() bool  { return s.ended }
func (ch *channel) gone() bool { return ch.pool.svc.channelByID[ch.info.ID] != ch }
func (b *buffer) gone() bool   { return b.block.pool.svc.buffers[b.id] != b }
func (n *name) gone() bool     { return n.buffer.block.pool.svc.names[n.text] != n }
func (l *Lease) gone() bool    { return l.session.leases[l.id] != l }

const (
	listPause  = 512              // look releases Service.mu for a moment after so many entries
	listWindow = 1 << 18          // how many entries are kept for the next pages
	listKept   = 10 * time.Second // how long they are kept
	maxWindows = 4                // how many sessions have kept entries; 100,000 entries take some MB
)

// window keeps entries of a list for its next pages, because look must go through everything to find them.
type window[K cmp.Ordered, V listed] struct {
	after   K // the cursor that it begins after
	entries []listEntry[K, V]
	more    bool // there are others after these
}

type listEntry[K cmp.Ordered, V listed] struct {
	key   K
	value V
}

// from returns the entries after a key. It returns false if the window has fewer than most of them and is not at the end of the list.
func (w *window[K, V]) from(after K, most int) ([]listEntry[K, V], bool) {
	i, found := slices.BinarySearchFunc(w.entries, after, func(e listEntry[K, V], key K) int { return cmp.Compare(e.key, key) })
	if found {
		i++
	}
	return w.entries[i:], len(w.entries)-i > most || !w.more
}

// windows are those of the sessions that looked last, the newest last. They are guarded by Service.mu.
type windows []*listing

// listing is the window of the list that a session is in the middle of.
type listing struct {
	of     *Session
	window any
	over   *time.Timer
}

func (all windows) of(s *Session) any {
	for _, one := range all {
		if one.of == s {
			return one.window
		}
	}
	return nil
}

// forget drops the window of a session.
func (all *windows) forget(s *Session) {
	*all = slices.DeleteFunc(*all, func(one *listing) bool {
		if one.of == s {
			one.over.Stop() // it would keep the window
		}
		return one.of == s
	})
}

// keepWindow keeps a window for the session's next pages. Service.mu is held.
func (s *Session) keepWindow(window any) {
	svc := s.svc
	svc.windows.forget(s)
	if len(svc.windows) == maxWindows {
		svc.windows.forget(svc.windows[0].of)
	}
	one := &listing{of: s, window: window}
	one.over = time.AfterFunc(listKept, func() {
		svc.mu.Lock()
		defer svc.mu.Unlock()
		svc.windows = slices.DeleteFunc(svc.windows, func(other *listing) bool { return other == one })
	})
	svc.windows = append(svc.windows, one)
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
	w, known := svc.windows.of(s).(*window[K, V])
	var found []listEntry[K, V]
	enough := known && after != first && after >= w.after
	if enough {
		found, enough = w.from(after, most)
	}
	if !enough {
		w = look(svc, all, after, may)
		found = w.entries
		if len(found) > most && !s.ended {
			s.keepWindow(w)
		}
	}
	more := w.more
	if len(found) > most {
		found, more = found[:most], true
	}
	if more {
		page.Next = cursor(found[len(found)-1].key)
	} else {
		svc.windows.forget(s)
	}
	page.Entries = slices.Grow(page.Entries, len(found))
	for _, e := range found {
		if !e.value.gone() {
			page.Entries = append(page.Entries, describe(e.value))
		}
	}
	return page, nil
}

// look finds the entries after a key, and some that are gone meanwhile. One look is taken at a time. Service.mu is held, and released meanwhile.
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
			runtime.Gosched() // let goroutines that wait for the lock go first
			svc.mu.Lock()
		}
		if key > after && may(value) {
			found = append(found, listEntry[K, V]{key, value})
		}
	}
	svc.mu.Unlock()
	slices.SortFunc(found, func(a, b listEntry[K, V]) int { return cmp.Compare(a.key, b.key) })
	w := &window[K, V]{after: after, entries: found}
	if len(found) > listWindow {
		w.entries, w.more = slices.Clone(found[:listWindow]), true
	}
	svc.mu.Lock()
	return w
}
