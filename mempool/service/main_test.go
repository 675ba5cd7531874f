package service

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" { // a benchmark measures the service without checks
		_ = os.Setenv("POOLBRIDGE_CHECK_LEASES", "1")
	}
	goleak.VerifyTestMain(m)
}

// patience is the limit of waits that must succeed. It is longer than any test.
const patience = time.Hour

// seeds returns how many seeds a test uses in which one goroutine works: n, or a quarter of n with -short. The race detector finds nothing
// in one goroutine and makes it slow, so `make test-go` uses all seeds without it, and a quarter with it.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 4
	}
	return n
}

func newService(t testing.TB) *Service {
	t.Helper()
	svc := New(Config{})
	t.Cleanup(svc.Close)
	return svc
}

// open makes a session of this process's user. The session gets no notices.
func open(t testing.TB, svc *Service) *Session {
	t.Helper()
	s, err := svc.OpenSession(mempool.Self(), "", nil)
	require.NoError(t, err)
	return s
}

// client stands for a client in another process. The client's session maps memory, and the service sends it each [Recall].
type client struct {
	*Session
	recalled []uint64 // guarded by Service.mu
}

func openClient(t testing.TB, svc *Service, p mempool.Peer) *client {
	t.Helper()
	c := new(client)
	s, err := svc.OpenSession(p, "", func(n Notice) { c.recalled = append(c.recalled, n.(Recall).Blocks...) })
	require.NoError(t, err)
	c.Session = s
	return c
}

// asked removes and returns the ids of the blocks that the client must unmap.
func (c *client) asked() []uint64 {
	c.svc.mu.Lock()
	defer c.svc.mu.Unlock()
	ids := c.recalled
	c.recalled = nil
	return ids
}

// mapBlock asks for the export of a lease's block. A client does the same when it maps the block. From then on, the service counts the
// block as mapped by the session.
func mapBlock(t testing.TB, l Lease) uint64 {
	t.Helper()
	_, _, err := l.Export()
	require.NoError(t, err)
	return l.Grant().Block
}

func createPool(t testing.TB, s *Session, spec mempool.PoolSpec) *Pool {
	t.Helper()
	p, err := s.CreatePool(spec)
	require.NoError(t, err)
	return p
}

// fakePool makes a pool of fake memory.
func fakePool(t testing.TB, s *Session, maxBytes uint64) (*Pool, *fakeBacking) {
	t.Helper()
	p := createPool(t, s, mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: maxBytes})
	return p, p.backing.(*fakeBacking)
}

func allocate(t testing.TB, s *Session, p *Pool, n uint64) Lease {
	t.Helper()
	l, err := s.allocate(context.Background(), p.rec.Info.ID, mempool.Bytes(n), 0)
	require.NoError(t, err)
	return l
}

// allocate does the same as Allocate, but returns only the lease. In the same way, getLease calls Get, and leaseOf calls Lease.
func (s *Session) allocate(ctx context.Context, pool uint64, t mempool.Tensor, wait time.Duration) (Lease, error) {
	g, err := s.Allocate(ctx, pool, t, wait, 0)
	return g.Lease, err
}

func (s *Session) getLease(ctx context.Context, text string, write bool, wait time.Duration) (Lease, error) {
	g, err := s.Get(ctx, text, write, Known{}, wait)
	return g.Lease, err
}

func (s *Session) leaseOf(ctx context.Context, buffer, generation uint64, write bool, wait time.Duration) (Lease, error) {
	g, err := s.Lease(ctx, buffer, generation, write, wait)
	return g.Lease, err
}

// The following methods are for tests that have a lease. Most of them call a method of the lease's session, and pass the lease's id.

func (l Lease) ID() uint64 { return l.rec.ID }

func (l Lease) Publish(p mempool.Publication) error {
	_, err := l.session.Publish(l.ID(), p)
	return err
}

func (l Lease) Release(incomplete bool) error { return l.ReleaseAt(incomplete, nil) }

func (l Lease) ReleaseAt(incomplete bool, done []mempool.Fence) error {
	return l.session.Release(incomplete, done, l.ID())
}

// Grant describes the lease as it is now.
func (l Lease) Grant() mempool.Grant {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.describe(l.rec)
}

// hasFailed says whether the content of a lease's buffer will never be complete.
func hasFailed(l Lease) bool {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return l.rec.Buffer.Failed
}

// memory returns the memory of a lease's block.
func memory(l Lease) mempool.Memory {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.memoryOf(l.rec.Buffer.Block)
}

func release(t testing.TB, l Lease) {
	t.Helper()
	require.NoError(t, l.Release(false))
}

// checkBooks asserts that every rule of the ledger holds, and that the backings' own counts agree. No call of the driver may be under way.
func checkBooks(t testing.TB, svc *Service) {
	t.Helper()
	svc.mu.Lock()
	defer svc.mu.Unlock()
	assert.Empty(t, svc.ledger.Check())
	for _, p := range svc.pools.all {
		var inUse uint64
		if p.backing != nil {
			var err error
			inUse, err = p.backing.InUse()
			assert.NoError(t, err)
		}
		for _, k := range p.files {
			inUse += k.bytes
		}
		assert.Equal(t, inUse, p.rec.Reserved, "what the backing says is in use")
	}
	assert.Equal(t, svc.ledger.Blocks.Len(), svc.blocks.Len())
	assert.Equal(t, svc.ledger.Sessions.Len()+svc.ledger.Ended.Len(), len(svc.sessions))
	assert.Equal(t, len(svc.ledger.Pools), len(svc.pools.all))
	assert.Equal(t, svc.ledger.Channels.Len(), len(svc.channels.all))
}

// checkFile asserts that the ledger can be written and read back. No pool may be in the making, and no block.
func checkFile(t testing.TB, svc *Service) {
	t.Helper()
	svc.mu.Lock()
	defer svc.mu.Unlock()
	_, err := ledger.Read(svc.ledger.Written(), svc.ledger.Limits)
	require.NoError(t, err)
}
