package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// model is a simple model of a service. It allocates no memory for buffers, never waits, and does one operation after the other.
type model struct {
	buffers map[uint64]*modelBuffer
	names   map[string]*modelName
	leases  map[uint64]*modelLease
}

type modelBuffer struct {
	id, generation, bytes uint64
	failed                bool
}

type modelName struct {
	buffer *modelBuffer
	owner  *actor // nil: the name outlives its session
	used   bool   // the name ends with the buffer's last lease
}

type modelLease struct {
	lease  Lease
	buffer *modelBuffer
	actor  *actor
	write  bool
}

// actor is a session, with the blocks that the session maps. After the session has ended, the actor stays as long as the session's process
// runs.
type actor struct {
	*client
	maps map[uint64]struct{}
}

// available returns the error that the service should return for a new lease on b.
func (m *model) available(b *modelBuffer, write bool) error {
	if b.failed {
		return mempool.ErrProducerDied
	}
	for _, l := range m.leases {
		if l.buffer == b && (l.write || write) {
			return mempool.ErrBusy
		}
	}
	return nil
}

// end ends a lease, and forgets the lease's buffer if nothing holds that buffer any more.
func (m *model) end(l *modelLease, incomplete bool) {
	delete(m.leases, l.lease.ID())
	l.buffer.failed = l.buffer.failed || (l.write && incomplete)
	m.settle()
}

func (m *model) settle() {
	for id, b := range m.buffers {
		held := false
		for _, l := range m.leases {
			held = held || l.buffer == b
		}
		for text, n := range m.names {
			if n.buffer == b && n.used && (!held || b.failed) {
				delete(m.names, text)
			}
		}
		for _, n := range m.names {
			held = held || n.buffer == b
		}
		if !held {
			delete(m.buffers, id)
		}
	}
}

// play drives a service and its model with the same random operations.
type play struct {
	*testing.T
	model
	random *rand.Rand
	svc    *Service
	pool   *Pool
	actors []*actor
	ghosts []func() // each ends the process of an ended session
}

func TestRandomOperationsDoWhatTheModelSays(t *testing.T) {
	for seed := range seeds(40) {
		kind := []mempool.Kind{fake, mempool.Host}[seed%2]
		t.Run(fmt.Sprintf("%s, seed %d", kind, seed), func(t *testing.T) {
			p := &play{T: t, random: rand.New(rand.NewPCG(seed, 0)), svc: newService(t), model: model{
				buffers: make(map[uint64]*modelBuffer), names: make(map[string]*modelName), leases: make(map[uint64]*modelLease)}}
			p.pool = createPool(t, open(t, p.svc), mempool.PoolSpec{Name: "p", Kind: kind, MaxBytes: 1 << 16, SessionBytes: 1 << 15})
			for range 400 {
				p.step()
				p.check()
				if t.Failed() {
					t.FailNow()
				}
			}
			p.reread()
		})
	}
}

func (p *play) step() {
	if len(p.actors) < 3 {
		p.actors = append(p.actors, &actor{client: openClient(p, p.svc, mempool.Self()), maps: make(map[uint64]struct{})})
	}
	a := p.actors[p.random.IntN(len(p.actors))]
	switch p.random.IntN(20) {
	case 0, 1, 2, 3, 4:
		p.allocate(a)
	case 5, 6, 7:
		p.get(a)
	case 8:
		p.borrow(a)
	case 9, 10:
		p.publish(a)
	case 11, 12, 13, 14:
		p.release(a)
	case 15:
		p.unpublish(a)
	case 16:
		p.answer(a)
	case 17:
		_, err := a.TrimPool(p.pool.rec.Info.ID, p.random.Uint64N(1<<15))
		require.NoError(p, err)
	case 18:
		if p.random.IntN(4) == 0 {
			p.leave(a)
		}
	case 19:
		if len(p.ghosts) > 0 {
			p.ghosts[0]()
			p.ghosts = p.ghosts[1:]
		}
	}
}

func (p *play) name() string { return string(rune('a' + p.random.IntN(4))) }

func (p *play) allocate(a *actor) {
	n := p.random.Uint64N(1 << (4 + p.random.IntN(12)))
	before := p.svc.Stats().Pools[0]
	l, err := a.allocate(context.Background(), p.pool.rec.Info.ID, mempool.Bytes(n), 0)
	size, tooLarge := p.pool.rec.BlockSize(n)
	if err != nil {
		require.NoError(p, tooLarge)
		if errors.Is(err, mempool.ErrOutOfMemory) { // enough bytes are free, but not in one piece
			require.Equal(p, mempool.Host, p.pool.rec.Info.Kind)
			return
		}
		require.ErrorIs(p, err, mempool.ErrLimit)
		charged := p.charged(a)
		full, mine := before.Leased+before.Held+size > 1<<16, charged+size > 1<<15
		// If no limit is exceeded (`full` and `mine` are false), the pool must have free blocks. An allocation can then fail for two reasons:
		// the service cannot immediately free blocks that sessions map, and it does not use a free block that is more than twice as large
		// as the allocation needs.
		require.True(p, full || mine || before.Cached > 0, "%d bytes were refused: %v", size, err)
		return
	}
	info := l.Grant()
	require.GreaterOrEqual(p, info.BlockBytes, size)
	require.NotContains(p, p.buffers, info.Buffer, "a buffer's id came again")
	require.NotContains(p, p.leases, info.ID)
	b := &modelBuffer{id: info.Buffer, generation: info.Generation, bytes: n}
	p.buffers[b.id] = b
	p.granted(a, l, b, true)
}

func (p *play) charged(a *actor) (sum uint64) {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	bytes, _ := a.rec.Counts(p.pool.rec)
	return bytes
}

func (p *play) granted(a *actor, l Lease, b *modelBuffer, write bool) {
	info := l.Grant()
	require.Equal(p, write, info.Write)
	require.Equal(p, b.id, info.Buffer)
	p.leases[info.ID] = &modelLease{l, b, a, write}
	_, first, err := l.Export()
	require.NoError(p, err)
	_, had := a.maps[info.Block]
	require.Equal(p, !had, first, "the export comes once")
	a.maps[info.Block] = struct{}{}
}

func (p *play) get(a *actor) {
	name, write := p.name(), p.random.IntN(3) == 0
	want := mempool.ErrNotFound
	if n := p.names[name]; n != nil {
		want = p.available(n.buffer, write)
	}
	l, err := a.getLease(context.Background(), name, write, 0)
	require.ErrorIs(p, err, want)
	if err == nil {
		p.granted(a, l, p.names[name].buffer, write)
	}
}

func (p *play) borrow(a *actor) {
	id, write := p.random.Uint64N(30)+1, p.random.IntN(3) == 0
	want, generation := error(nil), uint64(1)
	b := p.buffers[id]
	switch {
	case b != nil:
		want, generation = p.available(b, write), b.generation
	default:
		want = mempool.ErrStale
	}
	l, err := a.leaseOf(context.Background(), id, generation, write, 0)
	require.ErrorIs(p, err, want)
	if err == nil {
		p.granted(a, l, b, write)
	}
}

// lease chooses one of the actor's leases. It returns nil if the actor has none.
func (p *play) lease(a *actor) *modelLease {
	var ids []uint64
	for id, l := range p.leases {
		if l.actor == a {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return p.leases[ids[p.random.IntN(len(ids))]]
}

func (p *play) publish(a *actor) {
	l := p.lease(a)
	if l == nil {
		return
	}
	how := mempool.Publication{Name: p.name(), Keep: p.random.IntN(4) == 0, WhileUsed: p.random.IntN(3) == 0, Replace: p.random.IntN(2) == 0}
	old := p.names[how.Name]
	want := error(nil)
	switch {
	case !l.write:
		want = mempool.ErrInvalid
	case old != nil && !how.Replace && old.buffer != l.buffer:
		want = mempool.ErrExists
	}
	err := l.lease.Publish(how)
	require.ErrorIs(p, err, want)
	if err != nil {
		return
	}
	l.write = false
	p.names[how.Name] = &modelName{buffer: l.buffer, used: how.WhileUsed && !how.Keep}
	if !how.Keep && !how.WhileUsed {
		p.names[how.Name].owner = a
	}
	p.settle()
}

func (p *play) release(a *actor) {
	l := p.lease(a)
	if l == nil {
		return
	}
	incomplete := p.random.IntN(4) == 0
	require.NoError(p, a.Release(incomplete, nil, l.lease.ID()))
	require.ErrorIs(p, a.Release(incomplete, nil, l.lease.ID()), mempool.ErrReleased)
	p.end(l, incomplete)
}

func (p *play) unpublish(a *actor) {
	name, want := p.name(), mempool.ErrNotFound
	if p.names[name] != nil {
		want = nil
	}
	require.ErrorIs(p, a.Unpublish(name), want)
	delete(p.names, name)
	p.settle()
}

// answer drops all blocks that the service has recalled from the actor.
func (p *play) answer(a *actor) {
	ids := a.asked()
	for _, id := range ids {
		require.Contains(p, a.maps, id)
		delete(a.maps, id)
	}
	require.NoError(p, a.Dropped(ids))
}

// leave ends a session immediately, and ends the session's process immediately, later or never.
func (p *play) leave(a *actor) {
	p.actors = slices.DeleteFunc(p.actors, func(b *actor) bool { return a == b })
	gone := make(chan struct{})
	reclaimed := a.End(mempool.SessionLeft, "", gone)
	goes := func() { close(gone); <-reclaimed }
	if p.random.IntN(2) == 0 {
		goes()
	} else {
		p.ghosts = append(p.ghosts, goes)
	}
	for _, l := range p.leases {
		if l.actor == a {
			p.end(l, true)
		}
	}
	for text, n := range p.names {
		if n.owner == a {
			delete(p.names, text)
		}
	}
	p.settle()
}

// reread writes the ledger, reads it back and compares both.
func (p *play) reread() {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	read, err := ledger.Read(p.svc.ledger.Written(), p.svc.ledger.Limits)
	require.NoError(p, err)
	require.Equal(p, p.svc.ledger.Records(), read.Records())
	for id, want := range p.svc.ledger.Pools {
		have := read.Pools[id]
		require.Equal(p, []uint64{want.Reserved, want.Leased, want.Cached, want.Held, want.Used, uint64(want.Blocks)},
			[]uint64{have.Reserved, have.Leased, have.Cached, have.Held, have.Used, uint64(have.Blocks)})
		require.Equal(p, want.Has, have.Has)
		for s := range read.Sessions.All() {
			counts, kept := s.Counts(have)
			wantCounts, wantKept := p.svc.ledger.Sessions.Get(s.ID).Counts(want)
			require.Equal(p, []uint64{wantCounts, wantKept}, []uint64{counts, kept})
		}
	}
}

func (p *play) check() {
	checkBooks(p, p.svc)
	st := p.svc.Stats()
	used := uint64(0)
	for _, b := range p.buffers {
		used += b.bytes
	}
	assert.Equal(p, []int{len(p.actors) + 1, len(p.leases), len(p.buffers), len(p.names)}, []int{st.Sessions, st.Leases, st.Buffers, st.Names})
	assert.Equal(p, used, st.Pools[0].Used)
}
