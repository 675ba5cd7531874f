package mempool

import "time"

// This file has what a service tells of what happened to it. All of it is plain data.

// HistoryEvent is one thing that happened to a service. Fields that say nothing about it are empty.
type HistoryEvent struct {
	// Number counts the events of an epoch, from 1 on, without a gap.
	Number uint64
	At     time.Time
	Kind   EventKind
	// Session is the session that the event concerns; 0 if the event concerns no session. The next three fields are its process, its
	// user and what the client calls itself. If Session is 0, they say nothing.
	Session uint64
	PID     int32
	UID     uint32
	Program string
	// Pool and Channel are names.
	Pool, Channel string
	Buffer        uint64
	// Bytes is the amount of memory that the event concerns.
	Bytes uint64
	// Ending says how a session ended, for [SessionEnded] and [MemoryReclaimed].
	Ending SessionEnding
	// Took is how long the event took or lasts, for [MemoryReclaimed], [LeaseLong] and [SubscriberSlow].
	Took time.Duration
	// Count is the number of events like this one since the last reported one, including this event. The service reports a very
	// frequent event only from time to time.
	Count int
	// Text says in a sentence what happened and, if an operator has to act, what to do.
	Text string
}

// EventKind is what sort of thing happened.
type EventKind string

// The kinds of events.
const (
	PoolMade        EventKind = "pool-made"
	PoolDestroyed   EventKind = "pool-destroyed"
	PoolFull        EventKind = "pool-full"        // an allocation was refused for want of room, in the pool or for its session or user
	LimitMet        EventKind = "limit-met"        // another request was refused because of a limit of the service
	SessionBegan    EventKind = "session-began"    // it has done something that concerns memory or channels; At is when it began
	SessionEnded    EventKind = "session-ended"    // one whose beginning was told, or an operator or the service ended it: see [SessionEnding]
	MemoryReclaimed EventKind = "memory-reclaimed" // what was held for the process of an ended session can be used again
	LeaseLong       EventKind = "lease-long"       // a lease keeps another session waiting
	WriterDied      EventKind = "writer-died"      // a session ended before content was complete that others could reach
	DriverError     EventKind = "driver-error"     // the driver or the system refused memory, or did not take it back
	ChannelMade     EventKind = "channel-made"
	ChannelClosed   EventKind = "channel-closed"
	ChannelFailed   EventKind = "channel-failed"  // its shared memory is corrupt, or cannot be used
	FrameDoubted    EventKind = "frame-doubted"   // a consumer found a frame that contradicts itself
	SubscriberSlow  EventKind = "subscriber-slow" // a consumer is as far behind as its channel lets it be
)

// EventKinds has every kind, in the order in which documents have them.
func EventKinds() []EventKind {
	return []EventKind{PoolMade, PoolDestroyed, PoolFull, LimitMet, SessionBegan, SessionEnded, MemoryReclaimed, LeaseLong, WriterDied, DriverError,
		ChannelMade, ChannelClosed, ChannelFailed, FrameDoubted, SubscriberSlow}
}

// Trouble says whether an operator may have to act on an event of the kind.
func (k EventKind) Trouble() bool {
	switch k {
	case PoolFull, LimitMet, LeaseLong, WriterDied, DriverError, ChannelFailed, FrameDoubted, SubscriberSlow:
		return true
	}
	return false
}

// SessionEnding is how a session ended.
type SessionEnding string

// How sessions end.
const (
	SessionLeft     SessionEnding = "left"     // the client closed it
	SessionLost     SessionEnding = "lost"     // the connection broke without a word: the process was killed, or ended without closing
	SessionFailed   SessionEnding = "error"    // the service ended it because of what the client did
	SessionClosed   SessionEnding = "closed"   // an operator ended it
	SessionShutdown SessionEnding = "shutdown" // the service ended
)

// SessionEndings has every way in which sessions end.
func SessionEndings() []SessionEnding {
	return []SessionEnding{SessionLeft, SessionLost, SessionFailed, SessionClosed, SessionShutdown}
}

// EventPage is a page of what happened.
type EventPage struct {
	// Events in the order of their numbers.
	Events []HistoryEvent
	// Next is the number after which the next page begins.
	Next uint64
	// Lost is how many events after the number that was asked for are forgotten.
	Lost uint64
}

// Counts is what happened to a service in its life so far, in numbers.
type Counts struct {
	// Events counts all events by kind, including events that the service did not report one by one.
	Events map[EventKind]uint64
	// Endings counts sessions by how they ended.
	Endings map[SessionEnding]uint64
	// Waiting is how many requests wait now, by what they wait for: "room", "buffer", "name", "pool", "channel".
	Waiting map[string]int
	// Reclaims is how long memory was held for the processes of ended sessions.
	Reclaims Durations
	// DriverCalls and DriverErrors count what the service asked the driver or the system for, and what failed: "create", "allocate", "export",
	// "free", "close", of pools and blocks.
	DriverCalls, DriverErrors map[string]uint64
}

// Durations counts durations.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// Buckets maps a greatest duration to the number of durations that are not longer.
	Buckets map[time.Duration]uint64
}
