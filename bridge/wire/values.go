package wire

// The features of protocol version 1. [Hello] offers features, and [HelloReply] says which features the session has.
const (
	FeatureTimelines = "timelines"
	FeatureChannels  = "channels"
	FeatureRanges    = "ranges"
	FeatureWatch     = "watch"
)

// What a [List] request can list.
const (
	ListSessions = "sessions"
	ListChannels = "channels"
	ListNames    = "names"
	ListBuffers  = "buffers"
	ListLeases   = "leases"
	ListMembers  = "members"
)

// These types say what the numbers and texts of messages are.
type (
	// Time is in nanoseconds since 1970; 0 is no time.
	Time uint64
	// Duration is in nanoseconds.
	Duration uint64
	// Count is how many of something there are.
	Count uint64
	// UserID identifies a user of the machine.
	UserID uint64
	// ProcessID identifies a process of the machine.
	ProcessID uint64
	// Kind is a kind of memory.
	Kind string
	// ChannelMode says how many consumers get a frame.
	ChannelMode string
	// FullPolicy says what happens when a channel is full.
	FullPolicy string
	// EventKind is a kind of event.
	EventKind string
	// SessionEnding says how a session ended.
	SessionEnding string
)
