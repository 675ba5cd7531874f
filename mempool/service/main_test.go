package service

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the limit of waits that must succeed. It is longer than any test.
const patience = time.Hour

func newService(t testing.TB) *Service {
	t.Helper()
	svc := New(Config{})
	t.Cleanup(svc.Close)
	return svc
}

// open makes a session of this process's user. The session gets no notices.
func open(t testing.TB, svc *Service) *Session {
	t.Helper()
	s, err := svc.OpenSession(mempool.Self(), nil)
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
	s, err := svc.OpenSession(p, func(n Notice) { c.recalled = append(c.recalled, n.(Recall).Blocks...) })
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
func mapBlock(t testing.TB, l *Lease) uint64 {
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
func fakePool(t testing.TB, s *Session, maxBytes uint64) (*Pool, *fakeArena) {
	t.Helper()
	p := createPool(t, s, mempool.PoolSpec{Name: t.Name(), Kind: fake, MaxBytes: maxBytes})
	return p, p.arena.(*fakeArena)
}

func allocate(t testing.TB, s *Session, p *Pool, n uint64) *Lease {
	t.Helper()
	l, err := s.allocate(context.Background(), p.info.ID, mempool.Bytes(n), 0)
	require.NoError(t, err)
	return l
}

// allocate does the same as Allocate, but returns only the lease. In the same way, getLease calls Get, and leaseOf calls Lease.
func (s *Session) allocate(ctx context.Context, pool uint64, t mempool.Tensor, wait time.Duration) (*Lease, error) {
	g, err := s.Allocate(ctx, pool, t, wait)
	return g.Lease, err
}

func (s *Session) getLease(ctx context.Context, text string, write bool, wait time.Duration) (*Lease, error) {
	g, err := s.Get(ctx, text, write, wait)
	return g.Lease, err
}

func (s *Session) leaseOf(ctx context.Context, buffer, generation uint64, write bool, wait time.Duration) (*Lease, error) {
	g, err := s.Lease(ctx, buffer, generation, write, wait)
	return g.Lease, err
}

// The following methods are for tests that have a lease. Most of them call a method of the lease's session, and pass the lease's id.

func (l *Lease) ID() uint64 { return l.id }

func (l *Lease) Publish(p mempool.Publication) error { return l.session.Publish(l.id, p) }

func (l *Lease) Release(incomplete bool) error { return l.ReleaseAt(incomplete, nil) }

func (l *Lease) ReleaseAt(incomplete bool, done []mempool.Fence) error {
	return l.session.Release(incomplete, done, l.id)
}

// Grant describes the lease as it is now.
func (l *Lease) Grant() mempool.Grant {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return l.describe()
}

// hasFailed says whether the content of a lease's buffer will never be complete.
func hasFailed(l *Lease) bool {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return l.buffer.failed
}

// memory returns the memory of a lease's block.
func memory(l *Lease) mempool.Memory { return l.buffer.block.mem }

func release(t testing.TB, l *Lease) {
	t.Helper()
	require.NoError(t, l.Release(false))
}

// checkBooks asserts that the service's sums are right, and that the arena's own count agrees. No call of the driver may be under way.
func checkBooks(t testing.TB, svc *Service) {
	t.Helper()
	svc.mu.Lock()
	defer svc.mu.Unlock()
	for _, p := range svc.poolByID {
		assert.Equal(t, p.reserved, p.leased+p.cached+p.held, "reserved = leased + cached + held")
		assert.LessOrEqual(t, p.used, p.leased)
		assert.LessOrEqual(t, p.reserved, p.info.MaxBytes)
		cached, used, loose := uint64(0), uint64(0), 0
		for _, list := range p.cache {
			for _, b := range list {
				assert.Equal(t, blockCached, b.state)
				cached += b.size
				if b.mapped.len() == 0 {
					loose++
				}
			}
		}
		for size, l := range p.pending {
			count := 0
			for _, e := range l.all {
				if !e.stale() {
					assert.Equal(t, blockCached, e.block.state)
					cached += size
					count++
				}
			}
			assert.Positive(t, count)
			assert.Equal(t, count, l.count)
		}
		for b := range svc.buffers.all() {
			if b.block.pool == p {
				assert.Equal(t, blockLeased, b.block.state)
				used += b.bytes
			}
		}
		assert.Equal(t, cached, p.cached)
		assert.Equal(t, loose, p.loose)
		assert.Equal(t, used, p.used)
		inUse, err := p.arena.InUse()
		assert.NoError(t, err)
		assert.Equal(t, inUse, p.reserved, "what the arena says is in use")
	}
	for _, p := range svc.poolByID {
		checkCounts(t, p)
	}
	leases := 0
	for s := range svc.sessions.all() {
		leases += len(s.leases)
		for p, account := range s.accounts {
			sum := uint64(0)
			for b := range svc.buffers.all() {
				if b.account == account {
					assert.Equal(t, p, b.block.pool)
					sum += b.block.size
				}
			}
			assert.Equal(t, sum, account.bytes)
		}
	}
	assert.Equal(t, leases, svc.leases.len())
}

// checkCounts checks the bytes that count against the limits of a pool: each block counts once for each session, process and user.
// The caller holds Service.mu.
func checkCounts(t testing.TB, p *Pool) {
	t.Helper()
	p.recharge()
	users, kept := make(tally), make(map[*keeper]uint64)
	for b := range p.svc.buffers.all() {
		if b.block.pool == p {
			users.add(b.account.uid, int(b.block.size))
			if b.block.kept != nil {
				assert.Empty(t, b.block.kept.keepers, "the buffer's account has it")
			}
		}
	}
	for b := range p.charged {
		of := make(map[uint32]struct{})
		for _, k := range b.kept.keepers {
			kept[k] += b.size
			of[k.uid] = struct{}{}
		}
		for uid := range of {
			users.add(uid, int(b.size))
		}
	}
	assert.Equal(t, users, p.users)
	for k, bytes := range kept {
		assert.Equal(t, bytes, k.kept[p])
	}
	for s := range p.svc.sessions.all() {
		assert.Equal(t, kept[s.keeper], s.keeper.kept[p])
	}
}
