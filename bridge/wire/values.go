package wire

// The features of protocol version 1, as [Hello] offers them and [HelloReply] grants them.
const (
	FeatureTimelines = "timelines"
	FeatureChannels  = "channels"
)

// What a [List] request can list.
const (
	ListSessions = "sessions"
	ListChannels = "channels"
	ListNames    = "names"
	ListBuffers  = "buffers"
	ListLeases   = "leases"
)
