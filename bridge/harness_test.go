package bridge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// patience is longer than any test: what waits for it would hang without it.
const patience = time.Hour

// unhurried are the usual limits, but that clients on a slow machine have time.
var unhurried = func() limits {
	l := defaultLimits
	l.hello, l.send, l.recall = patience, patience, patience
	return l
}()

// rig is a service of its own for a test.
type rig struct {
	*Server
	svc  *service.Service
	path string
	log  *events
}

// socketPath is a path for a socket in a folder of the test's own. Those of t.TempDir may be too long for a socket.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "poolsvc.sock")
}

// start serves until the test ends. Servers are closed before clients, whose cleanups run first.
func start(t testing.TB, c ServerConfig, l limits) *rig {
	t.Helper()
	r := &rig{path: socketPath(t), log: newEvents()}
	c.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.svc = service.New(service.Config{Log: c.Log})
	var err error
	r.Server, err = listen(r.path, r.svc, c, l)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.Close()
		r.svc.Close()
	})
	return r
}

// serve is a service with limits that hurry nobody.
func serve(t testing.TB, c ServerConfig) (*service.Service, string) {
	t.Helper()
	r := start(t, c, unhurried)
	return r.svc, r.path
}

// only is the server's end of its only session.
func (r *rig) only(t *testing.T) *serverConn {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.conns, 1)
	for c := range r.conns {
		return c
	}
	return nil
}

// events is a log that can be waited on.
type events struct {
	mu    sync.Mutex
	lines []byte
	more  chan struct{}
}

func newEvents() *events { return &events{more: make(chan struct{})} }

func (e *events) Write(line []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, line...)
	close(e.more)
	e.more = make(chan struct{})
	return len(line), nil
}

// await waits until the log holds text.
func (e *events) await(t testing.TB, text string) {
	t.Helper()
	for {
		e.mu.Lock()
		found, more := bytes.Contains(e.lines, []byte(text)), e.more
		e.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("the log never said %q", text)
		}
	}
}

// eventually returns once something is so that nobody tells of.
func eventually(t testing.TB, so func() bool) {
	t.Helper()
	for !so() {
		time.Sleep(time.Millisecond)
		require.NoError(t, t.Context().Err())
	}
}

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
	l, err := p.Allocate(context.Background(), mempool.Bytes(n), 0)
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

// raw is a client that does what no client should.
type raw struct {
	testing.TB
	conn *seqpacket.Conn
	buf  []byte
}

func dialRaw(t testing.TB, path string) *raw {
	t.Helper()
	conn, err := seqpacket.Dial(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &raw{t, conn, make([]byte, wire.MaxPacket)}
}

// greeted is a raw client whose session is open.
func greeted(t testing.TB, path string) *raw {
	t.Helper()
	r := dialRaw(t, path)
	r.ask(1, &wire.Hello{Versions: []uint64{1}, Name: "raw"}, &wire.HelloReply{})
	return r
}

func (r *raw) send(q uint32, m wire.Request) {
	r.Helper()
	packet, err := wire.AppendRequest(nil, q, m)
	require.NoError(r, err)
	require.NoError(r, r.conn.Send(packet, nil))
}

// recv returns the next packet; its descriptors are closed.
func (r *raw) recv() ([]byte, error) {
	n, fds, err := r.conn.Recv(r.buf)
	if err == nil {
		err = fds.Close()
	}
	return r.buf[:n], err
}

// reply receives the reply to request q, which must be next but for notices.
func (r *raw) reply(q uint32, into wire.Reply) error {
	r.Helper()
	for {
		packet, err := r.recv()
		if err != nil {
			return err
		}
		h, err := wire.DecodeHeader(packet)
		require.NoError(r, err)
		if h.Q == 0 {
			continue
		}
		require.Equal(r, q, h.Q)
		return h.DecodeReply(into)
	}
}

// ask sends a request that must succeed.
func (r *raw) ask(q uint32, m wire.Request, into wire.Reply) {
	r.Helper()
	r.send(q, m)
	require.NoError(r, r.reply(q, into))
}

// refused sends a request that must fail with the code, on a session that lives on.
func (r *raw) refused(q uint32, m wire.Request, code wire.Code) {
	r.Helper()
	r.send(q, m)
	require.ErrorIs(r, r.reply(q, &wire.EmptyReply{}), code)
}

// cutOff reads until the connection ends, and returns the packets that came before that.
func (r *raw) cutOff() (packets [][]byte) {
	r.Helper()
	for {
		packet, err := r.recv()
		if err != nil {
			require.Truef(r, errors.Is(err, io.EOF) || errors.Is(err, seqpacket.ErrPeerClosed), "%v", err)
			return packets
		}
		packets = append(packets, append([]byte(nil), packet...))
	}
}

// last is the error that the service cut the connection off with, in a reply or a goodbye.
func (r *raw) last() *wire.Error {
	r.Helper()
	packets := r.cutOff()
	require.NotEmpty(r, packets, "the service said nothing")
	packet := packets[len(packets)-1]
	if n, err := wire.DecodeNotice(packet); err == nil {
		return &n.(*wire.Goodbye).Reason
	}
	_, err := wire.DecodeReply(packet, &wire.EmptyReply{})
	failure, ok := errors.AsType[*wire.Error](err)
	require.True(r, ok, "%v", err)
	return failure
}

// openDir is a directory that other users can reach.
func openDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}
