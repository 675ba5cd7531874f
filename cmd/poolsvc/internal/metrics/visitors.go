package metrics

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// maxConnections limits how many connections are open at the same time. Every user of the machine can open connections to a loopback
// address. Without this limit, one user could use up the file descriptors that sessions need. maxFromOne limits how many connections one
// remote machine may have.
const maxConnections, maxFromOne = 96, 32

// visitors is a listener that accepts every connection. At most maxConnections connections are open, and at most maxFromOne of them are
// from the same remote machine. If a new connection exceeds one of these limits, the listener closes an older connection. If the new
// connection exceeds maxFromOne, the older connection is from the same machine as the new connection. The listener closes the connection
// that has waited longest for a request. A connection waits if it is new, if it is idle, or if it has sent only a part of a request's
// header. If no connection waits, the listener closes the connection whose answer has taken longest so far.
type visitors struct {
	net.Listener

	mu    sync.Mutex
	here  map[*visitor]struct{}
	turns uint64 // number of all changes of all connections: a connection was accepted, began to wait, or began to answer
}

// visitor is a connection that the listener visitors has accepted.
type visitor struct {
	net.Conn
	of   *visitors
	from netip.Prefix // the machine of the peer; the zero value is this machine, which has no limit of its own

	// Guarded by visitors.mu:
	answering bool   // a handler has a request of the connection, or the server is sending the answer
	since     uint64 // the turn of the last change of this connection
}

func newVisitors(l net.Listener) *visitors {
	return &visitors{Listener: l, here: make(map[*visitor]struct{})}
}

// Accept accepts a connection. It may close another connection.
func (v *visitors) Accept() (net.Conn, error) {
	conn, err := v.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &visitor{Conn: conn, of: v, from: machine(conn.RemoteAddr())}
	if excess := v.admit(c); excess != nil {
		_ = excess.Close() // a request on the closed connection fails
	}
	return c, nil
}

// admit adds the connection c. If c exceeds a limit, admit removes an older connection and returns it, and the caller must close it.
// Otherwise admit returns nil.
func (v *visitors) admit(c *visitor) (excess *visitor) {
	v.mu.Lock()
	defer v.mu.Unlock()
	neighbors := 0
	for other := range v.here {
		if other.from == c.from {
			neighbors++
		}
	}
	crowded := c.from.IsValid() && neighbors >= maxFromOne
	if crowded || len(v.here) >= maxConnections {
		for other := range v.here {
			if (!crowded || other.from == c.from) && (excess == nil || other.before(excess)) {
				excess = other
			}
		}
		delete(v.here, excess)
	}
	v.here[c] = struct{}{}
	v.turns++
	c.since = v.turns
	return excess
}

// before says which of two connections admit closes: true stands for c, false stands for `other`.
func (c *visitor) before(other *visitor) bool {
	if c.answering != other.answering {
		return other.answering
	}
	return c.since < other.since
}

// Close closes the connection and removes it from the set of open connections of the listener.
func (c *visitor) Close() error {
	c.of.mu.Lock()
	delete(c.of.here, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *visitor) set(answering bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.turns++
	c.answering, c.since = answering, c.of.turns
}

// machine returns the machine of an address: an IPv4 address, or the /64 network of an IPv6 address. The zero value stands for this
// machine.
func machine(a net.Addr) netip.Prefix {
	from, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := from.AddrPort().Addr().Unmap().WithZone("")
	if ip.IsLoopback() {
		return netip.Prefix{}
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked()
}

// visitorKey is the key of a request's *visitor in its context.
type visitorKey struct{}

// watch makes the server note which of its connections wait for a request.
func watch(server *http.Server) {
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, visitorKey{}, conn)
	}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateIdle { // the server has sent the answer
			conn.(*visitor).set(false)
		}
	}
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(visitorKey{}).(*visitor).set(true)
		handler.ServeHTTP(w, r)
	})
}
