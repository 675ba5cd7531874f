package bridge

import "time"

// limits are what the server holds its clients to; docs/protocol.md names those that they can meet.
type limits struct {
	hello   time.Duration // from connect to hello
	send    time.Duration // for which a client may leave its socket's buffer full
	recall  time.Duration // for which an allocation waits for blocks that are asked back, at least
	waiting int           // requests of a session that wait at a time
	notices int           // notices of a session that wait to be sent
	denied  int           // connections at a time of those who may not have a session
	large   uint64        // bytes from which on an allocation is made besides the session's other requests
	working time.Duration // after which a client is told, again and again, that such an allocation is under way
}

var defaultLimits = limits{hello: 10 * time.Second, send: 10 * time.Second, recall: 2 * time.Second,
	waiting: 256, notices: 1024, denied: 64, large: 64 << 20, working: 250 * time.Millisecond}

const (
	maxWait         = 24 * time.Hour // for which a request waits, whatever it says
	defaultSessions = 4096
	defaultWaits    = 65536
	sessionFDs      = 3 // descriptors of a session: its socket, its process, its timeline
)

// milliseconds is a client's time limit, no longer than maxWait.
func milliseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(maxWait/time.Millisecond))) * time.Millisecond
}
