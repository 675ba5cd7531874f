package service

import (
	"cmp"
	"fmt"
	"runtime"
	"sort"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// The methods in this file list the sessions, channels, buffers, names and leases of the service, page by page. A session of the user that
// the service runs as, or of root, sees all entries. Every other session sees only the sessions of its own user, and what is in the pools
// that its user may use or has made. If the argument `into` is not nil, the page uses the memory of this slice for its entries. Entries may
// share tensors, so the caller must not change the tensors.

// View is what a session may see of the service.
type View struct {
	svc     *Service
	session *Session // nil: all that there is
}

// View returns what the session may see.
func (s *Session) View() View { return View{s.svc, s} }

// Page is one page of a list.
type Page[T any] struct {
	Entries []T
	// Next is the cursor of the next page. It is empty on the last page.
	Next string
}

// Sessions lists the sessions that the asking session may see, ordered by id.
//
// Errors: [mempool.ErrInvalid] if the argument `after` is not the field Next of a page, [mempool.ErrClosed].
func (v View) Sessions(after string, most int, into []mempool.SessionInfo) (Page[mempool.SessionInfo], error) {
	return listByID(v.session, &v.svc.ledger.Sessions, after, most, into, func(one *ledger.Session) mempool.SessionInfo {
		return v.infoLocked(v.svc.sessionOf(one))
	})
}

// Watch notes that the session only asks for statistics, lists and events.
func (s *Session) Watch() {
	s.svc.mu.Lock()
	defer s.svc.mu.Unlock()
	s.watches = true
}

// infoLocked describes a session.
func (v View) infoLocked(s *Session) mempool.SessionInfo {
	info := mempool.SessionInfo{ID: s.rec.ID, UID: s.rec.Peer.UID, PID: s.rec.Peer.PID, Program: s.rec.Program, Began: s.rec.Began,
		Leases: len(s.rec.Leases), Blocks: len(s.rec.Mapped), Members: len(s.rec.Members), Bytes: s.rec.Bytes()}
	info.Waits = len(s.waits)
	info.Watches = s.watches && info.Leases+info.Blocks+info.Members == 0 // a session that was taken up again may have some
	info.WaitsFor, info.Since = v.waitOfLocked(s)
	return info
}

// Channels lists the channels that the asking session may see, ordered by id. The list also has closed channels that still have
// consumers.
//
// Errors: [mempool.ErrInvalid] if the argument `after` is not the field Next of a page, [mempool.ErrClosed].
func (v View) Channels(after string, most int, into []mempool.ChannelInfo) (Page[mempool.ChannelInfo], error) {
	svc := v.svc
	return listByID(v.session, &svc.ledger.Channels, after, most, into, func(ch *ledger.Channel) mempool.ChannelInfo { return svc.channels.of(ch).Describe() })
}

// Buffers lists the buffers that the asking session may see, ordered by id.
//
// Errors: [mempool.ErrInvalid] if the argument `after` is not the field Next of a page, [mempool.ErrClosed].
func (v View) Buffers(after string, most int, into []mempool.BufferInfo) (Page[mempool.BufferInfo], error) {
	svc := v.svc
	moving, looked := make(map[uint64]struct{}), make(map[*ledger.Channel]struct{}) // blocks in channels of the page's writers, and these channels
	return listByID(v.session, &svc.ledger.Buffers, after, most, into, func(b *ledger.Buffer) mempool.BufferInfo {
		info := mempool.BufferInfo{ID: b.ID, Generation: b.Generation, Pool: b.Block.Pool.Info.ID, Bytes: b.Bytes, BlockBytes: b.Block.Size,
			Tensor: *b.Tensor, Session: b.Account.Session(), Reads: b.Readers.Len(), Names: int(b.Names), Readers: b.ReadersOf()}
		if b.Writer != nil {
			info.Writer = b.Writer.Session.ID
			for m := range b.Writer.Session.Members {
				if _, known := looked[m.Channel]; !known && m.Role == Producer && m.Channel.Pool == b.Block.Pool {
					looked[m.Channel] = struct{}{}
					for _, id := range svc.channels.of(m.Channel).Blocks() {
						moving[id] = struct{}{}
					}
				}
			}
		}
		if whole := b.Whole(); whole != nil {
			info.Whole = whole.ID
		}
		info.Name, info.Version, info.Published = b.Published()
		info.InChannel = useOf(b, moving) == BlockInChannel
		return info
	})
}

// Names lists the names that the asking session may see, in alphabetical order.
//
// Errors: [mempool.ErrClosed].
func (v View) Names(after string, most int, into []mempool.NameInfo) (Page[mempool.NameInfo], error) {
	return list(v.session, &v.svc.ledger.Names, after, most, into, func(text string) string { return text }, func(n *ledger.Name) mempool.NameInfo {
		b := n.Buffer
		info := mempool.NameInfo{Name: n.Text, Buffer: b.ID, Pool: b.Block.Pool.Info.ID, Bytes: b.Bytes, Tensor: *b.Tensor, UID: n.UID,
			Version: n.Version, WhileUsed: n.WhileUsed}
		if n.Owner != nil {
			info.Session = n.Owner.ID
		}
		return info
	})
}

// Leases lists the leases on buffers that the asking session may see, ordered by id.
//
// Errors: [mempool.ErrInvalid] if the argument `after` is not the field Next of a page, [mempool.ErrClosed].
func (v View) Leases(after string, most int, into []mempool.LeaseInfo) (Page[mempool.LeaseInfo], error) {
	svc := v.svc
	type awaited struct {
		what  string
		since time.Time
	}
	var holder *Session            // of the last entry: often, many leases in a row belong to one session
	var waits map[*Session]awaited // only for sessions that have waiting requests or channel members
	return listByID(v.session, &svc.ledger.Leases, after, most, into, func(l *ledger.Lease) mempool.LeaseInfo {
		b, of := l.Buffer, l.Session
		if holder == nil || holder.rec != of {
			holder = svc.sessionOf(of)
		}
		status := mempool.LeaseInfo{ID: l.ID, Session: of.ID, UID: of.Peer.UID, PID: of.Peer.PID, Program: of.Program, Buffer: b.ID,
			Pool: b.Block.Pool.Info.ID, Bytes: b.Bytes, BlockBytes: b.Block.Size, Write: l.Write,
			Began: svc.began.Add(time.Duration(l.Began) * time.Second).Truncate(time.Second)}
		if len(holder.waits) == 0 && len(holder.rec.Members) == 0 {
			return status
		}
		w, known := waits[holder]
		if !known {
			if waits == nil {
				waits = make(map[*Session]awaited)
			}
			w.what, w.since = v.waitOfLocked(holder)
			waits[holder] = w
		}
		status.WaitsFor, status.Since = w.what, w.since
		return status
	})
}

// Members lists the producers and consumers that take part in a channel, and consumers that left and still have frames of a queue, ordered
// by id.
//
// Errors: [mempool.ErrInvalid] if the argument `after` is not the field Next of a page, [mempool.ErrClosed] if the asking session has
// ended, or sees no channel with this id, [mempool.ErrDenied] if it sees the channel and is not on the pool's access list. A closed channel
// is no error.
func (v View) Members(channel uint64, after string, most int, into []mempool.MemberInfo) (page Page[mempool.MemberInfo], err error) {
	from, err := idAfter(after)
	if err != nil {
		return page, err
	}
	svc := v.svc
	svc.mu.Lock()
	defer svc.freeAndUnlock()
	ch, err := svc.ledger.Channel(v.session.rec, channel)
	if err != nil {
		return page, err
	}
	all := svc.channels.of(ch).DescribeMembers()
	first := sort.Search(len(all), func(i int) bool { return all[i].ID > from })
	into = append(into[:0], all[first:min(len(all), first+most)]...)
	page.Entries = into
	if first+most < len(all) {
		page.Next = strconv.FormatUint(all[first+most-1].ID, 10)
	}
	return page, nil
}

// waitOfLocked returns what a session waits for, and since when. If the session waits for several things, waitOfLocked returns the wait that
// began first. A producer sends no request when it waits for room in a full channel, so waitOfLocked also checks the session's channels. If
// the view has only some of the pools, waitOfLocked ignores waits for other things.
func (v View) waitOfLocked(s *Session) (what string, since time.Time) {
	all := v.session == nil || s.rec.VisibleTo(v.session.rec)
	if len(s.waits)+len(s.rec.Members) == 0 {
		return "", time.Time{}
	}
	for w := range s.waits {
		if (all || w.pool != nil && w.pool.VisibleTo(v.session.rec)) && (what == "" || w.since.Before(since)) {
			what, since = w.String(), w.since
		}
	}
	for m := range s.rec.Members {
		if m.Role != Producer || !m.Entered || m.Left || m.Channel.Closed || !all && !m.Channel.VisibleTo(v.session.rec) {
			continue
		}
		if slow, full := v.svc.channels.of(m.Channel).Blocked(); !full.IsZero() && (what == "" || full.Before(since)) {
			what, since = fmt.Sprintf("room in channel %q (its frames wait for a consumer)", m.Channel.Info.Name), full
			if slow != nil {
				what = fmt.Sprintf("%s (session %d), which is behind in channel %q", cmp.Or(slow.Session.Program, "a consumer"), slow.Session.ID, m.Channel.Info.Name)
			}
		}
	}
	return eventlog.Cut(what, maxWaitText), since
}

// maxWaitText limits the bytes of the text that says what a session waits for, so that it fits into a page.
const maxWaitText = 300

// listByID does the same as list, for entries whose keys are ids.
func listByID[V ledger.Visible, T any](s *Session, all *ledger.Index[uint64, V], after string, most int, into []T, describe func(V) T) (Page[T], error) {
	from, err := idAfter(after)
	if err != nil {
		return Page[T]{}, err
	}
	return list(s, all, from, most, into, func(id uint64) string { return strconv.FormatUint(id, 10) }, describe)
}

// idAfter reads a cursor that is an id.
func idAfter(cursor string) (id uint64, err error) {
	if cursor == "" {
		return 0, nil
	}
	if id, err = strconv.ParseUint(cursor, 10, 64); err != nil {
		return 0, typed.Errorf(mempool.ErrInvalid, "%q is no cursor: expected the one that came with the page before", cursor)
	}
	return id, nil
}

// listPause is the number of entries after which list releases Service.mu for a moment.
const listPause = 16

// list makes a page of entries, in the order of their keys. The page has only entries whose key is greater than the argument `after` and
// that the session may see. The argument `most` is the greatest number of entries in the page. list does not read the entries of earlier
// pages, and stops when the page is full. The key of an entry never changes, so an entry appears only once in consecutive pages.
func list[K cmp.Ordered, V ledger.Visible, T any](s *Session, all *ledger.Index[K, V], after K, most int, into []T, cursor func(K) string,
	describe func(V) T) (page Page[T], err error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if err := s.rec.Alive(); err != nil {
		return page, err
	}
	page.Entries = into[:0]
	var last K
	passed := 0
	for key, value := range all.After(after) {
		if value.VisibleTo(s.rec) {
			if len(page.Entries) == most {
				page.Next = cursor(last)
				break
			}
			page.Entries, last = append(page.Entries, describe(value)), key
		}
		if passed++; passed%listPause == 0 {
			svc.mu.Unlock()
			runtime.Gosched() // let goroutines that wait for the lock go first
			svc.mu.Lock()
		}
	}
	return page, nil
}
