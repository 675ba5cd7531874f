package service

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// uses returns how many blocks of the only pool have each use.
func uses(o Overview) map[BlockUse]int {
	found := make(map[BlockUse]int)
	for _, b := range o.Maps[0].Blocks {
		found[b.Use]++
	}
	for _, g := range o.Maps[0].Rest {
		found[g.Use] += g.Blocks
	}
	return found
}

// total returns the sum of the bytes in the map of the only pool.
func total(o Overview) (bytes uint64) {
	for _, b := range o.Maps[0].Blocks {
		bytes += b.Bytes
	}
	for _, g := range o.Maps[0].Rest {
		bytes += g.Bytes
	}
	return bytes
}

func TestAMapSaysWhatEveryBlockIsUsedForAndByWhom(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	written := allocate(t, s, p, 4096)
	read := allocate(t, s, p, 2048)
	publish(t, read, mempool.Publication{Name: "a"})
	reader := open(t, svc)
	_, err := reader.getLease(t.Context(), "a", false, 0)
	require.NoError(t, err)
	named := allocate(t, s, p, 1024)
	publish(t, named, mempool.Publication{Name: "c"})
	require.NoError(t, named.Release(false))
	require.NoError(t, allocate(t, s, p, 512).Release(false))
	o := svc.Overview(10)
	blocks := o.Maps[0].Blocks
	require.Len(t, blocks, 4)
	assert.Equal(t, []BlockUse{BlockWritten, BlockRead, BlockNamed, BlockFree}, []BlockUse{blocks[0].Use, blocks[1].Use, blocks[2].Use, blocks[3].Use},
		"the largest comes first")
	assert.Equal(t, s.rec.ID, blocks[0].Writer)
	assert.Equal(t, written.rec.Buffer.ID, blocks[0].Buffer)
	assert.EqualValues(t, 4096, blocks[0].BufferBytes)
	assert.Equal(t, mempool.Bytes(4096), *blocks[0].Tensor)
	assert.ElementsMatch(t, []uint64{s.rec.ID, reader.rec.ID}, blocks[1].Readers)
	assert.Equal(t, []any{"a", uint64(1), true}, []any{blocks[1].Name, blocks[1].Version, blocks[1].Published})
	for _, b := range blocks[:3] {
		assert.Equal(t, s.rec.ID, b.Session, "it counts for the one that allocated it")
		assert.GreaterOrEqual(t, b.Age, time.Duration(0))
	}
	assert.Zero(t, blocks[3].Session)
	assert.Empty(t, o.Maps[0].Rest)
	assert.Equal(t, o.Pools[0].Reserved, total(o))
	require.Len(t, o.Holders, 2)
	assert.Equal(t, 2, o.Holders[0].Leases)
}

func TestAMapOfManyBlocksTellsTheLargestOneByOneAndTheOthersTogether(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	for i := range 20 {
		one := s
		if i%2 == 0 {
			one = other
		}
		allocate(t, one, p, 512)
	}
	big := allocate(t, other, p, 8192)
	o := svc.Overview(5)
	blocks := o.Maps[0].Blocks
	require.Len(t, blocks, 5)
	assert.Equal(t, big.rec.Buffer.Block.ID, blocks[0].ID)
	assert.True(t, slices.IsSortedFunc(blocks[1:], func(a, b BlockInfo) int { return int(a.ID) - int(b.ID) }), "of equal ones the oldest")
	assert.Equal(t, []BlockGroup{{BlockWritten, s.rec.ID, 8 * 512, 8}, {BlockWritten, other.rec.ID, 8 * 512, 8}}, o.Maps[0].Rest)
	assert.Equal(t, o.Pools[0].Reserved, total(o))
	before := blocks
	require.NoError(t, big.Release(false))
	after := svc.Overview(5).Maps[0].Blocks
	for i := range before {
		assert.Equal(t, before[i].ID, after[i].ID, "a block keeps its place")
	}
	assert.Equal(t, BlockFree, after[0].Use)
}

func TestAMapTellsWhatAnEndedSessionStillHolds(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	dead, err := svc.OpenSession(mempool.Peer{UID: mempool.Self().UID, PID: 8, Process: 9}, "crashed.py", func(Notice) {})
	require.NoError(t, err)
	allocate(t, dead, p, 4096)
	gone := make(chan struct{})
	reclaimed := dead.End(mempool.SessionLeft, "", gone)
	o := svc.Overview(5)
	require.Len(t, o.Maps[0].Blocks, 1)
	assert.Equal(t, BlockHeld, o.Maps[0].Blocks[0].Use)
	assert.Equal(t, dead.rec.ID, o.Maps[0].Blocks[0].Session)
	require.Len(t, o.Holders, 2)
	assert.True(t, o.Holders[1].Ended)
	assert.Equal(t, "crashed.py", o.Holders[1].Program)
	assert.EqualValues(t, 4096, o.Holders[1].Bytes)
	assert.Equal(t, o.Pools[0].Reserved, total(o))
	close(gone)
	<-reclaimed
	o = svc.Overview(5)
	assert.Equal(t, BlockFree, o.Maps[0].Blocks[0].Use)
	assert.Len(t, o.Holders, 1)
	assert.Empty(t, svc.Overview(0).Maps)
}

func TestAMapTellsWhichBlocksAreInAChannel(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	source := r.produce(hire(t, r.svc))
	sink := r.consume(hire(t, r.svc), MemberSpec{})
	source.send()
	source.alloc()
	o := r.svc.Overview(5)
	assert.Equal(t, map[BlockUse]int{BlockInChannel: 1, BlockWritten: 1}, uses(o))
	moving := 0
	for _, b := range all(t, 9, source.View().Buffers) {
		assert.Equal(t, source.rec.ID, b.Writer)
		if b.InChannel {
			moving++
		}
	}
	assert.Equal(t, 1, moving, "lists say so, too")
	require.Len(t, o.Flows, 1)
	assert.Equal(t, []FlowMember{{sink.rec.ID, sink.rec.Program, Consumer, 0, 1, 0}, {source.rec.ID, source.rec.Program, Producer, 0, 0, 0}}, o.Flows[0].Members)
	assert.EqualValues(t, 1, o.Flows[0].Published)
	sink.quit()
	source.End(mempool.SessionLeft, "", nil)
	assert.Equal(t, r.svc.Overview(5).Pools[0].Reserved, total(r.svc.Overview(5)))
}

func TestAnOverviewSaysWhoWaitsForRoom(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1024)
	l := allocate(t, s, p, 1024)
	waiting := open(t, svc)
	done := make(chan error)
	go func() {
		_, err := waiting.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(1024), patience)
		done <- err
	}()
	for {
		o := svc.Overview(5)
		if len(o.Holders[1].Wants) == 0 {
			continue
		}
		assert.Equal(t, []uint64{p.rec.Info.ID}, o.Holders[1].Wants)
		assert.Empty(t, o.Holders[0].Wants)
		break
	}
	require.NoError(t, l.Release(false))
	require.NoError(t, <-done)
	assert.Empty(t, svc.Overview(5).Holders[1].Wants)
}

func TestEveryOverviewAddsUpWhileSessionsAllocateAndRelease(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 64<<10)
	var working sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		working.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				one, err := svc.OpenSession(mempool.Self(), "", func(Notice) {})
				if !assert.NoError(t, err) {
					return
				}
				for n := range 5 {
					l, err := one.allocate(t.Context(), p.rec.Info.ID, mempool.Bytes(uint64(512<<n)), 0)
					if err == nil && n%2 == 0 {
						assert.NoError(t, l.Publish(mempool.Publication{Name: fmt.Sprint(one.rec.ID, " ", n)}))
					}
				}
				one.End(mempool.SessionLeft, "", nil)
			}
		})
	}
	for range 200 {
		o := svc.Overview(7)
		assert.Equal(t, o.Pools[0].Reserved, total(o))
		byUse := uses(o)
		blocks := 0
		for _, n := range byUse {
			blocks += n
		}
		assert.Equal(t, o.Pools[0].Blocks, blocks)
	}
	close(stop)
	working.Wait()
}

func TestRequestsAreServedWhileAnOverviewIsMade(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	for range 4 * viewPause {
		allocate(t, s, p, 512)
	}
	stop, served := make(chan struct{}), make(chan struct{})
	var request sync.WaitGroup
	defer request.Wait()
	defer close(stop)
	request.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			svc.mu.Lock()
			between := svc.viewed != nil && svc.viewed.last < svc.ledger.Last.Buffer
			svc.mu.Unlock()
			if between {
				close(served)
				return
			}
		}
	})
	for range 100_000 {
		svc.Overview(5)
		select {
		case <-served:
			return
		default:
		}
	}
	t.Fatal("no request was served before a view was complete")
}

func TestAnOverviewCountsEachBlockOnceThoughItIsReleasedAndAllocatedMeanwhile(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1<<20)
	big := allocate(t, s, p, 8192)
	other := allocate(t, s, p, 512)
	stays := allocate(t, s, p, 512)
	v := &view{Service: svc, mappers: make(map[*ledger.Pool]*mapper)}
	svc.mu.Lock()
	v.countBuffers(3)
	svc.mu.Unlock()
	require.NoError(t, big.Release(false))
	again := allocate(t, s, p, 8192) // the same block
	require.Equal(t, big.rec.Buffer.Block, again.rec.Buffer.Block)
	require.NoError(t, other.Release(false))
	publish(t, stays, mempool.Publication{Name: "a"})
	svc.mu.Lock()
	defer svc.mu.Unlock()
	v.recount()
	m := v.mapper(p.rec).describe(svc, v.moving)
	o := Overview{Maps: []PoolMap{m}}
	assert.Equal(t, p.rec.Reserved, total(o))
	assert.Equal(t, map[BlockUse]int{BlockWritten: 1, BlockRead: 1, BlockFree: 1}, uses(o))
	assert.Equal(t, again.rec.Buffer.ID, m.Blocks[0].Buffer)
	assert.Nil(t, svc.viewed)
}

// crowd makes a service whose 1,000 sessions have 100,000 buffers, half of which have a name.
func crowd(tb testing.TB) *Service {
	svc := newService(tb)
	p, _ := fakePool(tb, open(tb, svc), 100_000*512)
	for i := range 1000 {
		s := open(tb, svc)
		for j := range 100 {
			l := allocate(tb, s, p, 512)
			if j%2 == 0 {
				publish(tb, l, mempool.Publication{Name: fmt.Sprint(i, " ", j)})
			}
		}
	}
	return svc
}

// BenchmarkOverview measures Overview with the service that crowd makes. Meanwhile, another goroutine stands for the requests of clients:
// it locks Service.mu every 100 µs. wait-µs is the mean time that this goroutine waits for the lock, and wait-µs-of-100 is the 99th
// percentile of that time.
func BenchmarkOverview(b *testing.B) {
	svc := crowd(b)
	var waits []time.Duration
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			begun := time.Now()
			svc.mu.Lock()
			svc.mu.Unlock() //nolint:staticcheck // only the wait is of interest
			waits = append(waits, time.Since(begun))
		}
	})
	for b.Loop() {
		svc.Overview(1000)
	}
	close(stop)
	others.Wait()
	slices.Sort(waits)
	sum := time.Duration(0)
	for _, wait := range waits {
		sum += wait
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(len(waits)), "wait-µs")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "wait-µs-of-100")
}
