package server

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
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
	openDir     = harness.OpenDir
	openFDs     = harness.OpenFDs
	eventually  = harness.Eventually
	dialRaw     = harness.DialRaw
	greeted     = harness.Greeted
	streaming   = harness.Streaming
	bytesTensor = harness.BytesTensor
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unhurried are the usual limits, but with much longer times, so that a client on a slow machine does not exceed them.
var unhurried = func() ClientLimits {
	l := DefaultLimits()
	l.Hello, l.Send, l.Recall = patience, patience, patience
	return l
}()

// rig is a service for one test.
type rig struct {
	*Server
	svc  *service.Service
	path string
	log  *harness.Log
}

// start starts a service that serves until the test ends. Tests make clients after this call, and Go runs the newest cleanup first. So the
// clients are closed before the server.
func start(t testing.TB, c Config, l ClientLimits) *rig {
	t.Helper()
	r := &rig{path: harness.SocketPath(t), log: harness.NewLog()}
	c.Log, c.Limits = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), &l
	r.svc = service.New(service.Config{Log: c.Log})
	var err error
	r.Server, err = Listen(r.path, r.svc, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.Close()
		r.svc.Close()
	})
	return r
}

// serve starts a service with the limits unhurried.
func serve(t testing.TB, c Config) (*service.Service, string) {
	t.Helper()
	r := start(t, c, unhurried)
	return r.svc, r.path
}

// only returns the connection of the only session of the server.
func (r *rig) only(t *testing.T) *connection {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.conns, 1)
	for c := range r.conns {
		return c
	}
	return nil
}

func dial(t testing.TB, path string) *bridge.Client {
	t.Helper()
	c, err := bridge.Dial(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func hostPool(name string, bytes uint64) mempool.PoolSpec {
	return mempool.PoolSpec{Name: name, Kind: mempool.Host, MaxBytes: bytes}
}

func createPool(t testing.TB, c *bridge.Client, spec mempool.PoolSpec) *bridge.Pool {
	t.Helper()
	p, err := c.CreatePool(context.Background(), spec)
	require.NoError(t, err)
	return p
}

func allocate(t testing.TB, p *bridge.Pool, n uint64) *bridge.Lease {
	t.Helper()
	l, err := p.TryAllocate(context.Background(), mempool.Bytes(n))
	require.NoError(t, err)
	return l
}

func publish(t testing.TB, l *bridge.Lease, name string) {
	t.Helper()
	require.NoError(t, l.Publish(context.Background(), mempool.Publication{Name: name}))
}
