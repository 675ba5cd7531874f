package bridge

import "time"

// limits are the limits that the server sets for its clients. docs/protocol.md has those that matter to clients.
type limits struct {
	hello   time.Duration // from the connection to the hello
	send    time.Duration // how long a client may leave its socket's buffer full
	recall  time.Duration // how long an allocation waits for recalled blocks, at least
	waiting int           // requests of a session that may wait at a time
	notices int           // notices of a session that may wait to be sent
	denied  int           // connections at a time of clients that may not have a session
	large   uint64        // bytes from which on an allocation does not block other requests of the session
	working time.Duration // interval of the notices that such an allocation is still running
}

var defaultLimits = limits{hello: 10 * time.Second, send: 10 * time.Second, recall: 2 * time.Second,
	waiting: 256, notices: 1024, denied: 64, large: 64 << 20, working: 250 * time.Millisecond}

const (
	maxWait         = 24 * time.Hour // limit on the time that a request waits
	defaultSessions = 4096
	defaultWaits    = 65536
	sessionFDs      = 3 // file descriptors of a session: its socket, its process, its timeline
)

// milliseconds returns a client's time limit, at most maxWait.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(maxWait/time.Millisecond))) * time.Millisecond
}
