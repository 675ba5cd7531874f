package server

import "time"

// ClientLimits are limits that the server sets for each of its clients. docs/protocol.md lists the limits that matter to clients.
type ClientLimits struct {
	// Hello is how long a client may take from connecting to sending hello.
	Hello time.Duration
	// Send is how long a client may leave its socket's buffer full. After that time the client's session ends.
	Send time.Duration
	// Recall is how long an allocation may wait for blocks that the service has recalled, even if the allocation's own time limit is shorter.
	Recall time.Duration
	// Waiting is how many requests of a session may wait at the service at a time.
	Waiting int
	// Notices is how many notices may wait until a client reads. If more notices wait, the client's session ends.
	Notices int
	// Some clients may not have a session: see Config.MayConnect. The server reads the hello of at most Denied such clients at a time, and
	// answers it with an error. It sends a goodbye to further such clients at once, and disconnects them.
	Denied int
	// Large is a size in bytes. An allocation of this size or more does not block the other requests of its session.
	Large uint64
	// Working is the time between two notices that tell a client that its request still runs.
	Working time.Duration
}

// DefaultLimits returns the limits that the server uses if Config.Limits is nil.
func DefaultLimits() ClientLimits {
	return ClientLimits{Hello: 10 * time.Second, Send: 10 * time.Second, Recall: 2 * time.Second,
		Waiting: 256, Notices: 1024, Denied: 64, Large: 64 << 20, Working: 250 * time.Millisecond}
}

const (
	maxWait         = 24 * time.Hour // longest time that a request may wait
	defaultSessions = 4096
	defaultWaits    = 65536
	sessionFDs      = 3 // file descriptors of a session: its socket, its process, its timeline
)

// milliseconds returns a client's time limit, at most maxWait.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(maxWait/time.Millisecond))) * time.Millisecond
}
