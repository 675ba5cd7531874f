package bridge

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
	"github.com/poolbridge/poolbridge/tests/harness"
)

const (
	patience = harness.Patience
	longWait = harness.LongWait
)

type raw = harness.Raw

var (
	socketPath  = harness.SocketPath
	openDir     = harness.OpenDir
	openFDs     = harness.OpenFDs
	eventually  = harness.Eventually
	dialRaw     = harness.DialRaw
	greeted     = harness.Greeted
	streaming   = harness.Streaming
	bytesTensor = harness.BytesTensor
)

// unhurried are the usual limits, but with much longer times, so that a client on a slow machine does not exceed them.
var unhurried = func() server.ClientLimits {
	l := server.DefaultLimits()
	l.Hello, l.Send, l.Recall = patience, patience, patience
	return l
}()

// rig is a service for one test.
type rig struct {
	*server.Server
	svc  *service.Service
	path string
	log  *harness.Log
}

// start starts a service that serves until the test ends. Tests make clients after this call, and Go runs the newest cleanup first. So the
// clients are closed before the server.
func start(t testing.TB, c server.Config, l server.ClientLimits) *rig {
	t.Helper()
	r := &rig{path: socketPath(t), log: harness.NewLog()}
	c.Log, c.Limits = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), &l
	r.svc = service.New(service.Config{Log: c.Log})
	var err error
	r.Server, err = server.Listen(r.path, r.svc, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.Close()
		r.svc.Close()
		assert.Empty(t, r.log.Line("the client describes lease"), "a client and the service describe a lease differently")
	})
	return r
}

// serve starts a service with the limits unhurried.
func serve(t testing.TB, c server.Config) (*service.Service, string) {
	t.Helper()
	r := start(t, c, unhurried)
	return r.svc, r.path
}

// sessions returns how many sessions the service has.
func (r *rig) sessions() int { return r.svc.Stats().Sessions }

func dial(t testing.TB, path string) *Client {
	t.Helper()
	c, err := Dial(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func hostPool(name string, bytes uint64) mempool.PoolSpec {
	return mempool.PoolSpec{Name: name, Kind: mempool.Host, MaxBytes: bytes}
}

func createPool(t testing.TB, c *Client, spec mempool.PoolSpec) *Pool {
	t.Helper()
	p, err := c.CreatePool(context.Background(), spec)
	require.NoError(t, err)
	return p
}

func allocate(t testing.TB, p *Pool, n uint64) *Lease {
	t.Helper()
	l, err := p.TryAllocate(context.Background(), mempool.Bytes(n))
	require.NoError(t, err)
	return l
}

func release(t testing.TB, l *Lease) {
	t.Helper()
	require.NoError(t, l.Release(false))
}

func publish(t testing.TB, l *Lease, name string) {
	t.Helper()
	require.NoError(t, l.Publish(context.Background(), mempool.Publication{Name: name}))
}
