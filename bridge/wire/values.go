package wire

// The features of protocol version 1. [Hello] offers features, and [HelloReply] says which features the session has.
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
