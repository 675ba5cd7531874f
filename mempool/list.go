package mempool

import "time"

// This file has the plain data with which a service describes its state.

// SessionInfo describes a session.
type SessionInfo struct {
	ID uint64
	// UID is the user, PID the process, and Program the name that the client gave itself. PID and Program serve only to inform people.
	UID     uint32
	PID     int32
	Program string
	Began   time.Time
	// Leases is the number of the session's leases. Blocks is the number of blocks that the session may map: the service sent the export of
	// these blocks, and the session has not dropped them. Members is the number of the session's members in channels.
	Leases, Blocks, Members int
	// Bytes is the number of bytes in all pools that count for the session.
	Bytes uint64
	// Waits is the number of the session's requests that wait. WaitsFor says, for people, what the session has waited for longest. Since is
	// the time when that wait began.
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
	// Closed means that no producer can publish any more. The channel exists until its consumers have left.
	Closed bool
	// Published is the number of frames that were published so far.
	Published uint64
	// In a broadcast, Waiting is the number of frames that the slowest consumer has not taken. In a queue, Waiting is the number of frames
	// that no consumer has acknowledged.
	Waiting uint64
	// In a broadcast, Slowest is the session of the consumer whose frames take up the most places, or 0 if no consumer is behind.
	Slowest uint64
	// Used is how many places of the channel are taken up. In a broadcast, Used counts the frames that the slowest consumer has not taken.
	// If producers wait for this consumer, Used also counts the frames that the consumer has not released. In a queue, Used counts the
	// frames that wait for a consumer. If Used is the capacity, the next call that publishes waits, fails, or drops a frame.
	Used uint64
	// Dropped is the number of frames that were dropped so far because consumers were behind. In a broadcast, Dropped is the sum of the
	// frames that each consumer missed. In a queue, Dropped is the number of frames that no consumer got.
	Dropped uint64
}

// NameInfo describes a name and the buffer that is published under this name.
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
	// Writer is the session with the write lease, or 0. Reads is the number of read leases. Readers has at most [MaxReaders] of the
	// sessions with read leases.
	Writer  uint64
	Readers []uint64
	Reads   int
	// Names is the number of names that the buffer is published under.
	Names int
	// InChannel means that the producer has left and that a channel still keeps the buffer for its frames.
	InChannel bool
}

// LeaseStatus describes a lease and the session that has the lease.
type LeaseStatus struct {
	ID, Session uint64
	// UID is the session's user, PID is the session's process, and Program is the name that the client gave itself. PID and Program serve
	// only to inform people.
	UID               uint32
	PID               int32
	Program           string
	Buffer, Pool      uint64
	Bytes, BlockBytes uint64
	Write             bool
	// Began is when the service granted the lease, with a precision of one second.
	Began time.Time
	// WaitsFor says, for people, what the session has waited for longest. Since is the time when that wait began. WaitsFor is empty if the
	// session waits for nothing.
	WaitsFor string
	Since    time.Time
}

// MaxReaders is the greatest number of readers in a [BufferInfo].
const MaxReaders = 8
