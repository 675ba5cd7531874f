package mempool

import "time"

// This file has what a service tells of what it holds. All of it is plain data.

// SessionInfo describes a session.
type SessionInfo struct {
	ID uint64
	// UID is its user, PID its process and Program what the client calls itself; the last two are for people.
	UID     uint32
	PID     int32
	Program string
	Began   time.Time
	// Leases it has, Blocks that it was sent the export of and has not dropped, and Members of channels.
	Leases, Blocks, Members int
	// Bytes count for it in pools.
	Bytes uint64
}

// ChannelStatus describes a channel and how many take part in it.
type ChannelStatus struct {
	ChannelInfo
	// UID is the user who made it.
	UID                  uint32
	Producers, Consumers int
	// Closed says that nothing more can be published: it lives until its consumers leave.
	Closed bool
	// Published is how many frames there were so far.
	Published uint64
	// Waiting is how many of them are still to be taken: by the consumer of a broadcast that is furthest behind, whose session is
	// Slowest (0: nobody is behind), or, in a queue, how many are not acknowledged.
	Waiting, Slowest uint64
}

// NameInfo describes a name and the buffer that is published under it.
type NameInfo struct {
	Name         string
	Buffer, Pool uint64
	Bytes        uint64
	Tensor       Tensor
	// UID is the user who published it, Session the one whose end removes it; 0: none, it is kept.
	UID     uint32
	Session uint64
}

// BufferInfo describes a buffer and what holds it.
type BufferInfo struct {
	ID, Generation, Pool uint64
	Bytes, BlockBytes    uint64
	Tensor               Tensor
	// Writer is the session that has the write lease; 0: none. Reads is how many read leases there are, Readers sessions that
	// have some: at most [MaxReaders] of them.
	Writer  uint64
	Readers []uint64
	Reads   int
	// Names that it is published under.
	Names int
	// InChannel says that a channel has it whose producer left.
	InChannel bool
}

// MaxReaders is how many readers a [BufferInfo] names.
const MaxReaders = 8
