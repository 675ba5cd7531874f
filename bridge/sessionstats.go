package bridge

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// SessionStats counts what a client has done since it was connected, and the leases that it has now.
type SessionStats struct {
	// Leases is the number of leases that the program has now, including leases of frames.
	Leases int
	// Allocated is the number of buffers that the service has granted to [Pool.Allocate]. AllocatedBytes is the sum of the bytes of these
	// buffers. An arena of a [Publisher] counts as one buffer.
	Allocated, AllocatedBytes uint64
	// MemoryWaits counts the requests to the service for memory, and the waits until memory of this client comes back from a channel. The
	// Count of MemoryWaits includes waits that ended without memory.
	MemoryWaits Waits
	// Channels has the counts of each channel in which the client has published or that it has subscribed to, in the order of first use.
	// If the client has used more than 1,024 channels, old channels in which it takes no part any more may be missing.
	Channels []ChannelCounts
}

// ChannelCounts is what a client has done in one channel since it was connected.
type ChannelCounts struct {
	// Name is the name of the channel.
	Name string
	// Published is the number of frames that this client has published. PublishedBytes is the total size of their buffers.
	Published, PublishedBytes uint64
	// Received is the number of frames that this client has received. ReceivedBytes is the total size of their buffers.
	Received, ReceivedBytes uint64
	// Dropped is the sum of [Frame.Dropped] over all frames that this client has received.
	Dropped uint64
	// RoomWaits counts the waits for room in the channel. FrameWaits counts the waits for the next frame.
	RoomWaits, FrameWaits Waits
}

// Waits says how often and how long a client has waited for something.
type Waits struct {
	// Count is the number of waits that succeeded. But the Count of MemoryWaits includes all waits.
	Count uint64
	// Time is the total time of all waits that have ended, including waits that failed.
	Time time.Duration
}

// SessionStats returns what this client has done. SessionStats does not ask the service, and can be called after Close. [Client.Stats] asks
// the service for its counts and for the memory use of pools, and [Client.Sessions] asks the service for a list of sessions.
func (c *Client) SessionStats() SessionStats {
	st := SessionStats{Allocated: c.allocated.Load(), AllocatedBytes: c.allocatedBytes.Load(), MemoryWaits: c.memoryWaits.total()}
	c.mu.Lock()
	for range c.leases.all() {
		st.Leases++
	}
	c.mu.Unlock()
	for _, p := range c.shared.publishersOf(nil) {
		st.Leases += len(p.loans())
	}
	st.Channels = c.shared.tallies.all()
	return st
}

// waits collects what [Waits] reports.
type waits struct {
	count atomic.Uint64
	time  atomic.Int64
}

// over adds a wait that has ended now. `found` reports whether the wait succeeded.
func (w *waits) over(began time.Time, found bool) {
	w.time.Add(int64(time.Since(began)))
	if found {
		w.count.Add(1)
	}
}

func (w *waits) total() Waits { return Waits{w.count.Load(), time.Duration(w.time.Load())} }

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
	members []*membership
	left    ChannelCounts
}

// join adds a member. After join, the results of the method `all` include the counts of this member.
func (t *tallies) join(m *membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.of(m)
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
		of = &tally{channel: m.channel.ID, left: ChannelCounts{Name: m.channel.Name}}
		t.list = append(t.list, of)
	}
	of.members = append(of.members, m)
}

// leave removes a member that has left and keeps the member's counts. It does nothing if the member had left before.
func (t *tallies) leave(m *membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.of(m)
	if of == nil {
		return
	}
	if i := slices.Index(of.members, m); i >= 0 {
		of.members = slices.Delete(of.members, i, i+1)
		of.left.add(m)
	}
}

// of returns the tally of a member's channel, or nil if the list has no such tally. The caller holds t.mu.
func (t *tallies) of(m *membership) *tally {
	i := slices.IndexFunc(t.list, func(of *tally) bool { return of.channel == m.channel.ID })
	if i < 0 {
		return nil
	}
	return t.list[i]
}

// all returns the counts of every channel.
func (t *tallies) all() (all []ChannelCounts) {
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
func (c *ChannelCounts) add(m *membership) {
	frames, w := m.counts(), m.waits.total()
	if m.role == shmchannel.ProducerRole.String() {
		c.Published += frames.Frames
		c.PublishedBytes += frames.Bytes
		c.RoomWaits = Waits{c.RoomWaits.Count + w.Count, c.RoomWaits.Time + w.Time}
		return
	}
	c.Received += frames.Frames
	c.ReceivedBytes += frames.Bytes
	c.Dropped += frames.Missed
	c.FrameWaits = Waits{c.FrameWaits.Count + w.Count, c.FrameWaits.Time + w.Time}
}
