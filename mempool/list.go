package mempool

import "time"

// This file has the plain data with which a service describes its state.

// SessionInfo describes a session.
type SessionInfo struct {
	ID uint64
	// UID is the user, PID the process, and Program the name that the client gave itself. PID and Program are only shown to people.
	UID     uint32
	PID     int32
	Program string
	Began   time.Time
	// Leases is the number of its leases, Blocks the number of blocks whose export it was sent and that it has not dropped, and Members
	// the number of its members of channels.
	Leases, Blocks, Members int
	// Bytes is the number of bytes that count for the session in pools.
	Bytes uint64
	// Waits is how many requests of it wait. WaitsFor says, for people, what the one that has waited longest waits for; Since is since when.
	Waits    int
	WaitsFor string
	Since    time.Time
}

// ChannelStatus describes a channel and its members.
type ChannelStatus struct {
	ChannelInfo
	// UID is the user who made the channel.
	UID                  uint32
	Producers, Consumers int
	// Closed means that nothing more can be published. The channel lives until its consumers leave.
	Closed bool
	// Published is the number of frames so far.
	Published uint64
	// Waiting is, in a broadcast, how many frames the consumer that is furthest behind has not taken. In a queue, Waiting is the number of
	// frames that are not acknowledged.
	Waiting uint64
	// Slowest is the session of the consumer of a broadcast that needs most places, or 0 if none is behind.
	Slowest uint64
	// Used is how many places of the channel frames take up: in a broadcast, of the consumer that needs most, those that it has not taken and,
	// if producers wait for it, not released; in a queue, those that wait for a consumer. If Used is the capacity, the next frame waits,
	// fails, or drops another.
	Used uint64
	// Dropped is the number of frames so far that were dropped because consumers were behind: in a broadcast, the sum of what each consumer
	// missed; in a queue, those that no consumer got.
	Dropped uint64
}

// NameInfo describes a name and the buffer that is published under it.
type NameInfo struct {
	Name         string
	Buffer, Pool uint64
	Bytes        uint64
	Tensor       Tensor
	// UID is the user who published the buffer. Session is the session whose end removes the name, or 0 if the name is kept.
	UID     uint32
	Session uint64
}

// BufferInfo describes a buffer and its users.
type BufferInfo struct {
	ID, Generation, Pool uint64
	Bytes, BlockBytes    uint64
	Tensor               Tensor
	// Writer is the session with the write lease, or 0. Reads is the number of read leases. Readers are sessions with read leases, at
	// most [MaxReaders] of them.
	Writer  uint64
	Readers []uint64
	Reads   int
	// Names is the number of names that the buffer is published under.
	Names int
	// InChannel means that a channel has the buffer and its producer has left.
	InChannel bool
}

// LeaseStatus describes a lease and the session that has it.
type LeaseStatus struct {
	ID, Session uint64
	// UID is the session's user, PID its process and Program what the client calls itself; the last two are for people.
	UID               uint32
	PID               int32
	Program           string
	Buffer, Pool      uint64
	Bytes, BlockBytes uint64
	Write             bool
	// Began is when the lease was granted, to a second.
	Began time.Time
	// WaitsFor says, for people, what the session has waited for since Since. It is empty if the session waits for nothing.
	WaitsFor string
	Since    time.Time
}

// MaxReaders is the greatest number of readers in a [BufferInfo].
const MaxReaders = 8
