package mempool

import "time"

// This file has the types of the plain data with which a service describes its state.

// SessionInfo describes a session.
type SessionInfo struct {
	ID uint64
	// UID is the session's user, PID is the session's process, and Program is the name that the client gave itself. PID and Program serve only
	// to inform people.
	UID     uint32
	PID     int32
	Program string
	Began   time.Time
	// Leases is the number of the session's leases. Blocks is the number of blocks that the session may map: the service sent the export of
	// these blocks, and the session has not dropped them. Members is the number of the session's members in channels.
	Leases, Blocks, Members int
	// Bytes is the number of bytes that count for the session, in all pools together.
	Bytes uint64
	// Waits is the number of the session's requests that wait now. WaitsFor and Since describe one of these requests, which began to wait
	// first: WaitsFor is a text for people that says what this request waits for, and Since is the time when it began to wait.
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
	// In a broadcast, Slowest is the session of the consumer whose frames take up the most places. Slowest is 0 if no consumer has a
	// frame left to take, and no consumer keeps so many taken frames that the channel is full.
	Slowest uint64
	// Used is how many places of the channel are taken up. In a broadcast, Used counts the frames that the slowest consumer has not taken. If
	// producers must wait for this consumer, Used also counts the frames that the consumer has not released. In a queue, Used counts the
	// frames that wait for a consumer. If Used equals the channel's capacity, the next call that publishes a frame waits, fails, or makes the
	// channel drop a frame.
	Used uint64
	// Dropped is the number of frames that the channel has dropped so far because consumers were too slow. In a broadcast, Dropped is the sum
	// of the frames that each consumer missed. In a queue, Dropped is the number of frames that the channel dropped before a consumer got
	// them.
	Dropped uint64
}

// NameInfo describes a name and the buffer that is published under this name.
type NameInfo struct {
	Name         string
	Buffer, Pool uint64
	Bytes        uint64
	Tensor       Tensor
	// UID is the user who published the buffer. Session is the id of a session: when this session ends, the service removes the name. If
	// Session is 0, the service keeps the name.
	UID     uint32
	Session uint64
}

// BufferInfo describes a buffer and its users.
type BufferInfo struct {
	ID, Generation, Pool uint64
	Bytes, BlockBytes    uint64
	Tensor               Tensor
	// Writer is the session with the write lease, or 0. Reads is the number of read leases. Readers has the sessions with read leases, but at
	// most [MaxReaders] of them.
	Writer  uint64
	Readers []uint64
	Reads   int
	// Names is the number of names under which the buffer is published.
	Names int
	// InChannel means that a channel still keeps the buffer for one of its frames, although the frame's producer has left.
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
	// Of the session's requests that wait now, WaitsFor and Since describe the request that began to wait first: WaitsFor is a text for people
	// that says what this request waits for, and Since is the time when it began to wait. WaitsFor is empty if no request of the session
	// waits.
	WaitsFor string
	Since    time.Time
}

// MaxReaders is the greatest number of sessions in the field Readers of a [BufferInfo].
const MaxReaders = 8
