package bridge

import "time"

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
	blocks := &c.session.Blocks
	st := SessionStats{Leases: len(blocks.Leases()) + c.streams.Loans(), Allocated: blocks.Allocated.Load(), AllocatedBytes: blocks.AllocatedBytes.Load()}
	st.MemoryWaits.Count, st.MemoryWaits.Time = blocks.MemoryWaits.Total()
	for _, n := range c.streams.Counts() {
		st.Channels = append(st.Channels, ChannelCounts{Name: n.Name, Published: n.Published, PublishedBytes: n.PublishedBytes, Received: n.Received,
			ReceivedBytes: n.ReceivedBytes, Dropped: n.Dropped, RoomWaits: Waits(n.RoomWaits), FrameWaits: Waits(n.FrameWaits)})
	}
	return st
}
