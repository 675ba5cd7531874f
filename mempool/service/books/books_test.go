package books

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// play is a ledger that changes at random.
type play struct {
	*ledger.Ledger
	random   *rand.Rand
	pool     *ledger.Pool
	sessions []*ledger.Session
	leases   []*ledger.Lease
}

func newPlay(seed uint64) *play {
	p := &play{Ledger: ledger.New(ledger.Limits{}), random: rand.New(rand.NewPCG(seed, 0))}
	p.NoteChanges()
	p.pool = p.ReservePool("p", 7, mempool.Access{UIDs: []uint32{7}})
	p.AddPool(p.pool, mempool.PoolInfo{Name: "p", MaxBytes: 1 << 30}, 4096, 0)
	return p
}

// step makes one of the changes that a request makes.
func (p *play) step() {
	switch n := p.random.IntN(10); {
	case len(p.sessions) == 0 || n == 0 && len(p.sessions) < 8:
		s := p.OpenSession(mempool.Peer{UID: 7, PID: p.random.Int32N(1000)}, false, time.Unix(1000, 0))
		p.AddTimeline(s).Seal()
		p.sessions = append(p.sessions, s)
	case n < 6:
		s := p.sessions[p.random.IntN(len(p.sessions))]
		block := p.pool.Idle(4096)
		if block != nil {
			s.Account(p.pool).Reuse(block)
		} else {
			block = s.Account(p.pool).Grow(4096).Done(1, 0, nil)
		}
		of := p.AddBuffer(block, s.Account(p.pool), s.Describe(mempool.Bytes(uint64(p.random.IntN(4096)))), 4096, 3)
		p.leases = append(p.leases, p.Grant(of, s, true, nil, 4))
		s.Map(block)
		if n == 5 {
			if _, old := p.SetName(mempool.Publication{Name: fmt.Sprint("name", p.random.IntN(4)), Replace: true}, of, s); old != nil {
				p.prune(old.Buffer)
			}
		}
	case len(p.leases) > 0:
		i := p.random.IntN(len(p.leases))
		l := p.leases[i]
		p.leases = append(p.leases[:i], p.leases[i+1:]...)
		l.Buffer.SetReady(ledger.Fences{l.Session.Timeline.Promise(1, p.Last.Lease)})
		l.End()
		p.prune(l.Buffer)
	}
}

// prune takes back the block of a buffer that nothing holds.
func (p *play) prune(b *ledger.Buffer) {
	if b.Unused() {
		p.RemoveBuffer(b)
		b.Block.TakeBack()
	}
}

func newBooks(t testing.TB, p *play) *Books {
	t.Helper()
	b, err := New(mempool.Epoch{1, 2}, time.Unix(7, 8), p.Ledger)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

// A process that is killed has made all stores before the kill. The test cuts the stores of the books after each store, and within.
func TestBooksThatAreCutAtAnyStoreSayTheStateBeforeOrAfterATransaction(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() { // see seeds of the tests of package service
		seeds = 1
	}
	for seed := range seeds {
		p := newPlay(seed)
		for range seed * 50 {
			p.step()
		}
		b := newBooks(t, p)
		image := imageOf(t, b)
		want := p.Written()
		check := func() {
			c, err := read(image)
			require.NoError(t, err, "seed %d", seed)
			require.Empty(t, c.Records.Differs(want), "seed %d", seed)
			_, err = ledger.Read(&c.Records, ledger.Limits{})
			require.NoError(t, err, "seed %d", seed)
		}
		check()
		stores, rewrites, area := 0, 0, b.area
		b.stored = func(at uint64, data []byte) {
			if stores++; at == commitAt {
				want = p.Written()
			} else {
				for _, n := range []int{1, 7, len(data) / 2, len(data) - 1} {
					copy(image[at:], data[:n])
					check()
				}
			}
			copy(image[at:], data)
			check()
		}
		for n := range 300 {
			if p.step(); n%100 == 50 {
				require.NoError(t, b.rewrite(p.Ledger))
			}
			require.NoError(t, b.Commit(p.Ledger))
			if b.area != area {
				area, rewrites = b.area, rewrites+1
			}
		}
		assert.Equal(t, 3, rewrites)
		assert.Greater(t, stores, 400)
	}
}

// imageOf copies the bytes of books that count.
func imageOf(t *testing.T, b *Books) []byte {
	image, err := unix.Mmap(-1, 0, len(b.mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(image)) })
	copy(image, b.mem[:headBytes])
	copy(image[headBytes+b.area*areaBytes:], b.mem[headBytes+b.area*areaBytes:][:b.end])
	return image
}

func TestBooksAreReadFromTheirFileAfterManyTransactions(t *testing.T) {
	p := newPlay(1)
	b := newBooks(t, p)
	began, areas := b.area, 0
	for n := range 50_000 {
		p.step()
		require.NoError(t, b.Commit(p.Ledger))
		if b.area != began {
			began, areas = b.area, areas+1
		}
		if n%10_000 == 0 {
			c, err := Read(b.File())
			require.NoError(t, err)
			require.Empty(t, c.Records.Differs(p.Written()))
			assert.Equal(t, mempool.Epoch{1, 2}, c.Epoch)
			assert.Equal(t, time.Unix(7, 8), c.Began)
		}
	}
	assert.Greater(t, areas, 1, "the books were begun anew in the other area")
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(b.File().Fd()), &st))
	assert.Less(t, uint64(st.Blocks*512), 4*partBytes+2*b.whole+headBytes, "an area that does not count has no memory")
}

func TestBooksThatWereOverwrittenAreRefused(t *testing.T) {
	p := newPlay(2)
	b := newBooks(t, p)
	for range 200 {
		p.step()
		require.NoError(t, b.Commit(p.Ledger))
	}
	whole := imageOf(t, b)
	begin := headBytes + b.area*areaBytes
	random := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		at := begin + random.Uint64N(b.end)
		was := whole[at]
		whole[at] ^= byte(1 + random.IntN(255))
		_, err := read(whole)
		assert.ErrorIs(t, err, mempool.ErrInvalid)
		whole[at] = was
	}
	for at := range 40 {
		was := whole[at]
		for _, bad := range []byte{was ^ 1, was ^ 0x80, 0xff} {
			whole[at] = bad
			if _, err := read(whole); bad != was && (at < 16 || at >= 32) { // the epoch can be any
				assert.ErrorIs(t, err, mempool.ErrInvalid, "byte %d", at)
			}
		}
		whole[at] = was
	}
	_, err := read(whole)
	assert.NoError(t, err)
}

func TestBooksOfAnotherVersionAreRefusedWithAType(t *testing.T) {
	b := newBooks(t, newPlay(1))
	b.mem[8]++
	_, err := Read(b.File())
	var version *VersionError
	require.ErrorAs(t, err, &version)
	assert.Equal(t, VersionError{Format: 1, Records: ledger.Version + 1, Expected: ledger.Version}, *version)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
}

func TestWhatIsNoFileOfBooksIsRefused(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	_, err = Read(file)
	require.ErrorIs(t, err, mempool.ErrInvalid)
	require.NoError(t, file.Truncate(headBytes+2*areaBytes))
	_, err = Read(file)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
}

func TestBooksThatCannotBeWrittenAreGivenUp(t *testing.T) {
	p := newPlay(1)
	b := newBooks(t, p)
	p.step()
	b.end = areaBytes - 10 // the area has no room for more
	b.allocated[b.area^1] = 0
	file := b.file
	broken, err := os.Open("/dev/null")
	require.NoError(t, err)
	b.file = broken
	require.Error(t, b.Commit(p.Ledger))
	p.step()
	require.NoError(t, b.Commit(p.Ledger), "the service goes on without")
	_, err = Read(file)
	assert.ErrorIs(t, err, mempool.ErrInvalid)
	b.file = file
	assert.NoError(t, broken.Close())
}

func BenchmarkCommit(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprint("books=", kept), func(b *testing.B) {
			p := &play{Ledger: ledger.New(ledger.Limits{})}
			if kept {
				p.NoteChanges()
			}
			p.pool = p.ReservePool("p", 7, mempool.Access{UIDs: []uint32{7}})
			p.AddPool(p.pool, mempool.PoolInfo{Name: "p", MaxBytes: 1 << 30}, 4096, 0)
			l, err := New(mempool.Epoch{}, time.Now(), p.Ledger)
			require.NoError(b, err)
			defer l.Close()
			s := p.OpenSession(mempool.Peer{UID: 7}, false, time.Unix(1000, 0))
			tensor := s.Describe(mempool.Bytes(4096))
			b.ReportAllocs()
			for b.Loop() {
				a := s.Account(p.pool)
				block := p.pool.Idle(4096)
				if block != nil {
					a.Reuse(block)
				} else {
					block = a.Grow(4096).Done(1, 0, nil)
				}
				of := p.AddBuffer(block, a, tensor, 4096, 3)
				lease := p.Grant(of, s, true, nil, 4)
				if kept && l.Commit(p.Ledger) != nil {
					b.FailNow()
				}
				lease.End()
				p.RemoveBuffer(of)
				block.TakeBack()
				if kept && l.Commit(p.Ledger) != nil {
					b.FailNow()
				}
			}
		})
	}
}
