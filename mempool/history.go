package mempool

import "time"

// This file has types in which a service reports events and counters. All of them are plain data. HistoryEvent is in entries_gen.go.

// The values of [ServiceStats].Guard, beside "".
const (
	GuardWatches = "watches"
	GuardLost    = "lost"
)

// EventKind is the kind of an event.
type EventKind string

// These are the kinds of events.
const (
	PoolMade           EventKind = "pool-made"
	PoolDestroyed      EventKind = "pool-destroyed"
	PoolFull           EventKind = "pool-full"        // an allocation was refused or waits long: the pool is full, or a limit is reached
	LimitMet           EventKind = "limit-met"        // a request or a connection exceeded a limit of the service, not of a pool
	SessionBegan       EventKind = "session-began"    // a session has used memory or a channel for the first time; At is when the session began
	SessionEnded       EventKind = "session-ended"    // a session ended that had a SessionBegan event, or that an operator or an error ended
	MemoryReclaimed    EventKind = "memory-reclaimed" // the service holds no memory any more for the process of an ended session
	LeaseLong          EventKind = "lease-long"       // a session has waited long for a buffer that another session has leased
	WriterDied         EventKind = "writer-died"      // a session ended and left incomplete content that other sessions could read
	DriverError        EventKind = "driver-error"     // the driver or the system failed to allocate or to free memory, or memory ended with the service's process
	ChannelMade        EventKind = "channel-made"
	ChannelClosed      EventKind = "channel-closed"
	ChannelFailed      EventKind = "channel-failed"      // the channel's shared memory is corrupt, or cannot be used
	FrameDoubted       EventKind = "frame-doubted"       // a consumer found a frame with contradictory data
	FrameLost          EventKind = "frame-lost"          // frames of a queue were lost: at its end, or because it had no consumer and dropped them; Count says how many
	FrameUndeliverable EventKind = "frame-undeliverable" // a frame of a queue was delivered as often as its channel allows, and dropped
	SubscriberSlow     EventKind = "subscriber-slow"     // one consumer has long kept the channel full, or has not entered it
	ServiceAdopted     EventKind = "service-adopted"     // another process has taken over from a service that died
	ServiceImpaired    EventKind = "service-impaired"    // the service goes on, but lacks something of its own, such as its log or its socket's file
)

// EventKinds returns all kinds of events, in the order in which the documentation lists them.
func EventKinds() []EventKind {
	return []EventKind{PoolMade, PoolDestroyed, PoolFull, LimitMet, SessionBegan, SessionEnded, MemoryReclaimed, LeaseLong, WriterDied, DriverError,
		ChannelMade, ChannelClosed, ChannelFailed, FrameDoubted, FrameLost, FrameUndeliverable, SubscriberSlow, ServiceAdopted, ServiceImpaired}
}

// Trouble reports whether an operator may have to act on an event of kind k.
func (k EventKind) Trouble() bool {
	switch k {
	case PoolFull, LimitMet, LeaseLong, WriterDied, DriverError, ChannelFailed, FrameDoubted, FrameLost, FrameUndeliverable, SubscriberSlow,
		ServiceAdopted, ServiceImpaired:
		return true
	}
	return false
}

// SessionEnding is how a session ended.
type SessionEnding string

// These constants say how a session ended.
const (
	SessionLeft     SessionEnding = "left"     // the client closed the session
	SessionLost     SessionEnding = "lost"     // the connection broke: the client's process was killed, or ended without closing the session
	SessionFailed   SessionEnding = "error"    // the service ended the session because of an error of the client
	SessionClosed   SessionEnding = "closed"   // an operator ended the session
	SessionShutdown SessionEnding = "shutdown" // the service shut down
)

// SessionEndings returns every value of SessionEnding.
func SessionEndings() []SessionEnding {
	return []SessionEnding{SessionLeft, SessionLost, SessionFailed, SessionClosed, SessionShutdown}
}

// EventPage is one page of a list of events.
type EventPage struct {
	// Events has the events of the page, in the order of their numbers.
	Events []HistoryEvent
	// Next is the number of an event. The next page begins with the event after this event.
	Next uint64
	// Lost is the number of events that the caller asked for but does not get, because the service has already forgotten them.
	Lost uint64
}

// Counts has counters of a service. The service counts from its start.
type Counts struct {
	// Events counts all events by kind, including events that the service did not report one by one.
	Events map[EventKind]uint64
	// Endings counts the ended sessions by the way in which they ended.
	Endings map[SessionEnding]uint64
	// Waiting is the number of requests that wait now. The keys of the map are the things that requests wait for: "room", "buffer", "name",
	// "pool", "channel", "consumers".
	Waiting map[string]int
	// Reclaims counts how long the service has held memory, a timeline or a seat for the process of a session after the session ended.
	Reclaims Durations
	// DriverCalls counts the calls to the driver or the system. DriverErrors counts those calls that failed. The keys of both maps are
	// "create" and "close" for pools, and "allocate", "export" and "free" for blocks.
	DriverCalls, DriverErrors map[string]uint64
}

// Durations counts durations.
type Durations struct {
	Count uint64
	Sum   time.Duration
	// Buckets maps an upper bound to the number of durations that are not longer than the bound.
	Buckets map[time.Duration]uint64
}
