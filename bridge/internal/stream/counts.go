package stream

import (
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// Counts is what a client has done in one channel.
type Counts struct {
	Name                                                        string
	Published, PublishedBytes, Received, ReceivedBytes, Dropped uint64
	RoomWaits, FrameWaits                                       Wait
}

// Wait says how often and how long a client has waited.
type Wait struct {
	Count uint64
	Time  time.Duration
}

// Counts returns the counts of every channel of which the client is a member, and of those that it left and whose counts are kept (mostTallies).
func (st *Streams) Counts() []Counts { return st.tallies.all() }

// Loans returns how many loans the publishers have.
func (st *Streams) Loans() (loans int) {
	for _, p := range st.publishersOf(nil) {
		loans += len(p.Loans())
	}
	return loans
}

// tallies are the counts of a client's channels.
type tallies struct {
	mu   sync.Mutex
	list []*tally
}

// mostTallies is how many channels' counts a client keeps. But if a client takes part in more channels than this at the same time, it keeps
// the counts of all these channels.
const mostTallies = 1024

// tally is the counts of a channel: its present members, and the counts of members that have left.
type tally struct {
	channel uint64
	members []*member
	left    Counts
}

// join adds a member. After join, the results of the method `all` include the counts of this member.
func (t *tallies) join(m *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.ofLocked(m)
	if of == nil {
		if len(t.list) >= mostTallies {
			old := 0
			t.list = slices.DeleteFunc(t.list, func(of *tally) bool {
				unused := len(of.members) == 0 && old < mostTallies/2
				if unused {
					old++
				}
				return unused
			})
		}
		of = &tally{channel: m.channel.ID, left: Counts{Name: m.channel.Name}}
		t.list = append(t.list, of)
	}
	of.members = append(of.members, m)
}

// leave removes a member that has left and keeps the member's counts. It does nothing if the member had left before.
func (t *tallies) leave(m *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.ofLocked(m)
	if of == nil {
		return
	}
	if i := slices.Index(of.members, m); i >= 0 {
		of.members = slices.Delete(of.members, i, i+1)
		of.left.add(m)
	}
}

// ofLocked returns the tally of a member's channel; nil if no member of it has joined, or if the tally made room for others (mostTallies). The
// caller holds mu.
func (t *tallies) ofLocked(m *member) *tally {
	i := slices.IndexFunc(t.list, func(of *tally) bool { return of.channel == m.channel.ID })
	if i < 0 {
		return nil
	}
	return t.list[i]
}

// all returns the counts of every channel.
func (t *tallies) all() (all []Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range t.list {
		counts := of.left
		for _, m := range of.members {
			counts.add(m)
		}
		all = append(all, counts)
	}
	return all
}

// add adds the counts of a member.
func (c *Counts) add(m *member) {
	frames := m.counts()
	count, total := m.waits.Total()
	if m.role == shmchannel.ProducerRole {
		c.Published += frames.Frames
		c.PublishedBytes += frames.Bytes
		c.RoomWaits = Wait{c.RoomWaits.Count + count, c.RoomWaits.Time + total}
		return
	}
	c.Received += frames.Frames
	c.ReceivedBytes += frames.Bytes
	c.Dropped += frames.Missed
	c.FrameWaits = Wait{c.FrameWaits.Count + count, c.FrameWaits.Time + total}
}
