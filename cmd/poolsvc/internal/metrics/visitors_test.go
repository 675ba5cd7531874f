package metrics

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConnectionsThatDoNotAskKeepNobodyOut(t *testing.T) {
	for name, sent := range map[string]string{"new": "", "half of a header": "GET /healthz HTTP/1.1\r\n", "idle": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			c := Config{Address: "127.0.0.1:0", Ready: well, Log: slog.New(slog.DiscardHandler)}
			s, err := newServer(c, registry(t, busy()), well)
			require.NoError(t, err)
			s.http.ReadHeaderTimeout, s.http.ReadTimeout, s.http.IdleTimeout = 0, 0, 0 // so that no connection ends because of a time limit
			go s.run(c.Log)
			at := s.Addr().String()
			defer func() { assert.NoError(t, s.Close()) }()
			for range maxConnections + 8 {
				conn, err := net.Dial("tcp", at)
				require.NoError(t, err)
				defer conn.Close()
				_, err = conn.Write([]byte(sent))
				require.NoError(t, err)
				if name != "idle" {
					continue
				}
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, 200, response.StatusCode)
			}
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				code, _ := get(t, "GET", "http://"+at+path, "")
				assert.Equal(t, 200, code, path)
			}
		})
	}
}

// queue is a listener that accepts the given connections in their order.
type queue struct {
	net.Listener
	callers []*caller
}

// caller is a connection from an address.
type caller struct {
	net.Conn
	from   string
	closed bool
}

func (q *queue) Accept() (net.Conn, error) {
	next := q.callers[0]
	q.callers = q.callers[1:]
	return next, nil
}

func (c *caller) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.from))
}

func (c *caller) Close() error {
	c.closed = true
	return nil
}

// crowd opens n connections from each address. The addresses take turns: one connection from the first address, one from the second
// address, and so on. The first `answering` connections that crowd opens send a request at once. crowd returns all connections, and how
// many connections of each address are still open after it has opened the last connection.
func crowd(t *testing.T, n, answering int, addresses ...string) (all []*caller, open map[string]int) {
	t.Helper()
	for i := range n * len(addresses) {
		all = append(all, &caller{from: addresses[i%len(addresses)]})
	}
	v := newVisitors(&queue{callers: all})
	for i := range all {
		c, err := v.Accept()
		require.NoError(t, err)
		if i < answering {
			c.(*visitor).set(true)
		}
	}
	open = make(map[string]int)
	for _, c := range all {
		if !c.closed {
			open[c.from]++
		}
	}
	return all, open
}

func TestAnotherMachineHasItsShareOfTheConnections(t *testing.T) {
	_, open := crowd(t, 50, 0, "192.0.2.1:1", "[2001:db8::1]:1", "127.0.0.1:1")
	assert.Equal(t, map[string]int{"192.0.2.1:1": 32, "[2001:db8::1]:1": 32, "127.0.0.1:1": 32}, open)
	_, open = crowd(t, 50, 0, "127.0.0.1:1", "[::1]:1")
	assert.Equal(t, map[string]int{"127.0.0.1:1": 48, "[::1]:1": 48}, open, "this machine has no share")
	_, open = crowd(t, 20, 0, "[2001:db8::1]:1", "[2001:db8::2]:1")
	assert.Equal(t, 32, open["[2001:db8::1]:1"]+open["[2001:db8::2]:1"], "a machine may have all addresses of its network")
	_, open = crowd(t, 20, 0, "192.0.2.1:1", "192.0.2.2:1")
	assert.Equal(t, map[string]int{"192.0.2.1:1": 20, "192.0.2.2:1": 20}, open)
}

func TestTheConnectionThatHasWaitedLongestGoesAndAnAnswerIsCutOffLast(t *testing.T) {
	const more = 5
	all, _ := crowd(t, maxConnections+more, 10, "127.0.0.1:1")
	for i, c := range all {
		assert.Equal(t, i >= 10 && i < 10+more, c.closed, "connection %d", i)
	}
	all, _ = crowd(t, maxConnections+more, maxConnections+more, "127.0.0.1:1")
	for i, c := range all {
		assert.Equal(t, i < more, c.closed, "connection %d", i)
	}
}
