package metrics

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// maxConnections is how many connections there are at a time: every user of the machine can reach a loopback address, and must not take the
// descriptors that sessions need. maxFromOne is how many of them one other machine may have.
const maxConnections, maxFromOne = 96, 32

// visitors is a listener that always accepts. Where there are too many connections then, it closes the one that has waited for a request the
// longest: one that is new, idle, or in the midst of the header of a request. If none waits, the one whose answer has taken longest goes.
type visitors struct {
	net.Listener

	mu    sync.Mutex
	here  map[*visitor]struct{}
	turns uint64 // how often one of them came, began to wait, or was given a request
}

// visitor is a connection of visitors.
type visitor struct {
	net.Conn
	of   *visitors
	from netip.Prefix // the machine; the zero value for this one, which has no bound of its own

	// Of visitors.mu:
	answering bool   // a handler has its request, or the answer is on its way
	since     uint64 // the turn at which that began
}

func newVisitors(l net.Listener) *visitors {
	return &visitors{Listener: l, here: make(map[*visitor]struct{})}
}

// Accept takes a connection, for which another one may have to go.
func (v *visitors) Accept() (net.Conn, error) {
	conn, err := v.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &visitor{Conn: conn, of: v, from: machine(conn.RemoteAddr())}
	if excess := v.admit(c); excess != nil {
		_ = excess.Close() // its request, if it had one, fails
	}
	return c, nil
}

// admit adds c, and gives the connection that has to go for it, nil if none has.
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

// before says whether c goes before other does.
func (c *visitor) before(other *visitor) bool {
	if c.answering != other.answering {
		return other.answering
	}
	return c.since < other.since
}

// Close also makes room for another connection.
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

// machine is where a connection comes from: an address of IPv4, or the network of 64 bits of one of IPv6. The zero value is this machine.
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

// watch has server say which of its connections wait for a request.
func watch(server *http.Server) {
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, visitorKey{}, conn)
	}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateIdle { // the answer is sent
			conn.(*visitor).set(false)
		}
	}
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(visitorKey{}).(*visitor).set(true)
		handler.ServeHTTP(w, r)
	})
}
