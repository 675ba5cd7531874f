package streams

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file says how far the members of a channel are, and what they wait for.

// Describe describes the channel for a list.
func (st *Stream) Describe() mempool.ChannelInfo {
	info := mempool.ChannelInfo{ChannelIdentity: st.Info, UID: st.UID, Closed: st.Closed, Published: st.host.Published(), Waiting: st.host.Waiting(),
		Used: st.host.Used(), Dropped: st.host.Dropped() + min(st.lost, st.host.Published())} // a client can say anything
	needs, taken := uint64(0), uint64(0)
	for _, m := range st.Members {
		switch {
		case !m.Entered || m.Left:
		case m.Role == ledger.Producer:
			info.Producers++
		default:
			info.Consumers++
			frames, _, _ := st.host.Progress(st.ends[m.ID].Member)
			taken += frames
			behind, need := st.Behind(m), st.needs(m)
			info.Waiting = max(info.Waiting, behind)
			if late := behind > 0 || need == uint64(st.Info.Capacity); late && need > needs {
				needs, info.Slowest = need, m.Session.ID
			}
		}
	}
	if oldest := st.host.Oldest(); oldest != nil {
		info.Slowest = st.Members[oldest.ID].Session.ID
	}
	if slow, since := st.Blocked(); !since.IsZero() && info.Producers > 0 && !st.Closed {
		info.Blocked = true
		if slow != nil {
			info.Slowest = slow.Session.ID
		}
	}
	if info.Dropped > st.dropped {
		st.dropped, st.droppedAt = info.Dropped, time.Now()
	}
	// Between the loss of a frame and the next frame, there is room for one. A full queue with the policy Latest keeps one frame.
	full := info.Full == mempool.DropOldest && info.Used+1 >= uint64(info.Capacity) || info.Full == mempool.Latest
	if info.Mode == mempool.WorkQueue && !info.Closed && info.Producers > 0 && (info.Blocked || full && time.Since(st.droppedAt) < newLoss) {
		info.Untaken = st.idles(taken) || info.Consumers == 0
	} else {
		st.idle = time.Time{}
	}
	return info
}

// idles reports whether the consumers of a queue that wants room have taken no frame for a while, and have none in hand. `taken` is how many
// they have taken so far.
func (st *Stream) idles(taken uint64) bool {
	if st.idle.IsZero() || st.taken != taken || len(st.host.InHand()) > 0 {
		st.taken, st.idle = taken, time.Now()
	}
	return time.Since(st.idle) >= longIdle
}

// longIdle is how long consumers may leave a queue full before somebody should look at them.
const longIdle = 10 * time.Second

// newLoss is how long the loss of a frame is news.
const newLoss = time.Minute

// DescribeMembers describes the members that take part, ordered by id, and consumers that left and still have frames of a queue.
func (st *Stream) DescribeMembers() []mempool.MemberInfo {
	var all []mempool.MemberInfo
	var inHand map[*shmchannel.Member]uint64
	if st.Info.Mode == mempool.WorkQueue {
		inHand = st.host.InHand()
	}
	for _, m := range st.Members {
		lag := inHand[st.ends[m.ID].Member]
		if !m.Entered || m.Left && lag == 0 {
			continue
		}
		of := m.Session
		info := mempool.MemberInfo{ID: m.ID, Session: of.ID, UID: of.Peer.UID, PID: of.Peer.PID, Program: of.Program, Role: string(m.Role), Lag: lag,
			Ended: of.Ended}
		var when uint64
		if info.Frames, info.Last, when = st.host.Progress(st.ends[m.ID].Member); when > 0 {
			info.LastAt = time.Unix(0, int64(when))
		}
		if st.Info.Mode == mempool.Broadcast {
			info.Lag = st.Behind(m)
		}
		if m.Full == mempool.Block && st.lags(m) {
			info.Since = st.ends[m.ID].behind.Since
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b mempool.MemberInfo) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Used returns how many places of the channel are taken.
func (st *Stream) Used() uint64 { return st.host.Used() }

// Behind returns how many frames a consumer of a broadcast has not taken yet.
func (st *Stream) Behind(m *ledger.Member) uint64 { return st.host.Behind(st.ends[m.ID].Member) }

// Missed returns how many frames a consumer of a broadcast has missed.
func (st *Stream) Missed(m *ledger.Member) uint64 { return st.host.Missed(st.ends[m.ID].Member) }

// needs returns how many places of the channel a consumer of a broadcast needs.
func (st *Stream) needs(m *ledger.Member) uint64 { return st.host.Needs(st.ends[m.ID].Member) }

// Blocks returns the ids of the blocks in the channel, and of those that consumers use.
func (st *Stream) Blocks() []uint64 { return st.host.Blocks(nil) }

// Blocked returns since when producers of the channel wait for room; the time is zero if they do not wait. It also returns the consumer of a
// broadcast that they have waited for longest; nil if the frames of a queue wait for any consumer.
func (st *Stream) Blocked() (slow *ledger.Member, since time.Time) {
	if st.Info.Full == mempool.Block && st.stuck() {
		return nil, st.full.Since
	}
	for _, m := range st.Members {
		if m.Full != mempool.Block || !st.lags(m) {
			continue
		}
		if at := st.ends[m.ID].behind.Since; slow == nil || at.Before(since) || at.Equal(since) && m.ID < slow.ID {
			slow, since = m, at
		}
	}
	return slow, since
}

// lags reports whether a consumer of a broadcast leaves its channel no room for another frame.
func (st *Stream) lags(m *ledger.Member) bool {
	return m.Role == ledger.Consumer && m.Entered && !m.Left && st.ends[m.ID].behind.Look(st.needs(m), uint64(st.Info.Capacity))
}

// stuck reports whether a queue has no room for another frame.
func (st *Stream) stuck() bool {
	return st.Info.Mode == mempool.WorkQueue && st.full.Look(st.host.Used(), uint64(st.Info.Capacity))
}

// Watch notes which subscribers of a broadcast have been slow for the time `patience`, and since when a queue is full. It also notes if a
// queue has dropped frames for this time because no consumer takes them.
func (st *Stream) Watch(patience time.Duration) {
	st.stuck()
	st.watchUntaken(patience)
	for _, m := range st.Members {
		if !st.lags(m) {
			continue
		}
		behind := &st.ends[m.ID].behind
		if behind.Told || time.Since(behind.Since) < patience {
			continue
		}
		behind.Told = true
		e := m.Session.About(mempool.SubscriberSlow, "%s has %d frames of channel %q to take or to release, which keeps %d: %s", m.Session.Who(),
			max(st.Behind(m), st.needs(m)), st.Info.Name, st.Info.Capacity, consequence(m.Full))
		e.Took = time.Since(behind.Since)
		st.note(e)
	}
}

func (st *Stream) watchUntaken(patience time.Duration) {
	info := st.Describe()
	if !info.Untaken {
		st.untaken, st.wanted = eventlog.Lag{}, info.Dropped
		return
	}
	if st.untaken.Look(1, 1); st.untaken.Told || info.Dropped <= st.wanted || time.Since(st.untaken.Since) < patience {
		return
	}
	st.untaken.Told = true
	lost := info.Dropped - st.wanted
	text := fmt.Sprintf("queue %q has no consumer, and has dropped %s that nobody took: start one", st.Info.Name, count.Of(lost, "frame"))
	if info.Consumers > 0 {
		text = fmt.Sprintf("queue %q has dropped %s, because none of its consumers (%d) takes any: look whether they hang", st.Info.Name,
			count.Of(lost, "frame"), info.Consumers)
	}
	st.note(mempool.HistoryEvent{Kind: mempool.FrameLost, Count: int(lost), Took: time.Since(st.untaken.Since), Text: text})
}

// consequence says what happens while a subscriber is slow.
func consequence(full mempool.FullPolicy) string {
	switch full {
	case mempool.Block:
		return "producers wait for it"
	case mempool.Fail:
		return "producers get errors"
	}
	return "it misses frames"
}
