package service

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestFramesOfAProducerThatDiedStayUntilNobodyNeedsThem(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4, Mode: mode}, 8)
			p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
			p.send()
			kept := p.send().rec.Buffer
			p.alloc() // this buffer is not published
			f := c.next()
			gone, reclaimed := p.end()
			assert.Equal(t, 2, r.kept())
			assert.False(t, kept.Failed, "records say when a frame is complete")
			leased, held := r.stands()
			assert.EqualValues(t, 2, leased)
			assert.EqualValues(t, 1, held, "the process may still write it")
			checkBooks(t, r.svc)
			gone()
			<-reclaimed
			r.awaitStands(2, 0)

			g := c.next()
			assert.Equal(t, kept.ID, g.Buffer)
			c.done(g, mempool.Fence{})
			c.done(f, mempool.Fence{})
			if mode == mempool.Broadcast { // the channel keeps frames for new consumers
				_, err := c.Channel(r.info.ID).MapBlock(f.Block)
				require.NoError(t, err)
				leased, _ = r.stands()
				assert.EqualValues(t, 2, leased)
				require.NoError(t, c.Dropped([]uint64{f.Block}))
				require.NoError(t, r.owner.Channel(r.info.ID).Close())
			}
			r.awaitStands(0, 0)
			checkBooks(t, r.svc)
		})
	}
}

func TestABlockWithSeveralFramesStaysUntilTheLastFrameIsNotNeeded(t *testing.T) {
	const frames = 4
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for what, end := range map[string]func(*source){
			"the producer died": func(p *source) { gone, _ := p.end(); gone() },
			"the producer left": func(p *source) { p.leave() },
		} {
			t.Run(string(mode)+"/"+what, func(t *testing.T) {
				r := newChannelRig(t, mempool.ChannelSpec{Capacity: frames, Mode: mode}, 8)
				p, c, victim := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{}), hire(t, r.svc)
				arena := p.alloc()
				for range frames {
					p.publish(arena, mempool.Fence{})
				}
				taken := []*shmchannel.Frame{c.next()}
				if mode == mempool.WorkQueue { // another consumer dies with a frame in hand
					r.consume(victim, MemberSpec{}).next()
					gone, reclaimed := victim.end()
					gone()
					<-reclaimed
				}
				end(p)
				for len(taken) < frames {
					taken = append(taken, c.next())
				}
				r.awaitStands(1, 0)
				assert.False(t, arena.rec.Buffer.Failed)
				if mode == mempool.Broadcast {
					require.NoError(t, r.owner.Channel(r.info.ID).Close())
				}
				for _, f := range taken {
					leased, _ := r.stands()
					assert.EqualValues(t, 1, leased)
					c.done(f, mempool.Fence{})
				}
				r.awaitStands(0, 0)
				checkBooks(t, r.svc)
			})
		}
	}
}

func TestProducersThatDiedLeaveNoBroadcastWithoutSeats(t *testing.T) {
	const dead = 2 * shmchannel.MaxProducers
	for full, first := range map[mempool.FullPolicy]int{mempool.Block: dead/2 + 1, mempool.DropOldest: dead/2 + 1, mempool.Latest: dead} {
		t.Run(string(full), func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 100, Full: full}, 100)
			for range dead {
				p := r.produce(hire(t, r.svc))
				p.send()
				gone, reclaimed := p.end()
				gone()
				<-reclaimed
			}
			c := r.consume(hire(t, r.svc), MemberSpec{Oldest: true})
			f := c.next()
			assert.EqualValues(t, first, f.Number)
			c.done(f, mempool.Fence{})
			checkBooks(t, r.svc)
		})
	}
}

func TestABlockOfADeadProducerIsNotUsedAgainWhileAConsumerUsesIt(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 2)
	dead, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
	first := dead.send().Grant().Block
	f := c.next()
	require.Equal(t, first, f.Block)
	gone, _ := dead.end()
	gone()
	p := r.produce(hire(t, r.svc))
	p.send() // overwrites the dead producer's frame
	assert.False(t, r.room())
	fence := c.fence()
	c.done(f, fence)
	r.awaitStands(1, 0)
	l, err := r.owner.allocate(t.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
	require.NoError(t, err)
	assert.Equal(t, first, l.Grant().Block)
	assert.Equal(t, []mempool.Fence{fence}, l.Grant().Wait, "the consumer's work is not done")
	c.reach(fence)
	release(t, l)
}

func TestABlockOfADeadProducerComesBackWhenItsConsumerDies(t *testing.T) {
	for name, policy := range map[string]mempool.FullPolicy{"that blocks": mempool.Block, "that misses frames": mempool.DropOldest} {
		t.Run(name, func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 2)
			dead, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: policy})
			dead.send()
			c.next()
			gone, _ := dead.end()
			gone()
			consumerGone, reclaimed := c.end()
			p := r.produce(hire(t, r.svc))
			p.send() // overwrites the dead producer's frame
			select {
			case <-reclaimed:
				t.Fatal("the consumer's process may still read the frame")
			default:
			}
			assert.False(t, r.room())
			consumerGone()
			assert.True(t, r.room(), "at once")
			checkBooks(t, r.svc)
		})
	}
}

func TestABlockOfAProducerThatLeftWaitsForItsOwnWork(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 2)
	p := r.produce(hire(t, r.svc))
	fence := p.fence()
	l := p.alloc()
	p.publish(l, fence)
	p.leave()
	require.ErrorIs(t, p.Release(false, nil, l.ID()), mempool.ErrReleased)
	assert.Equal(t, 1, r.kept())
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	next, err := r.owner.allocate(t.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
	require.NoError(t, err)
	other, err := r.owner.allocate(t.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
	require.NoError(t, err)
	assert.Equal(t, []mempool.Fence{fence}, slices.Concat(next.Grant().Wait, other.Grant().Wait))
	p.reach(fence)
}

// The channel gives a block back to its producer before the consumers' work on the block is done. A living producer waits for this work
// before it writes the block again. If the producer dies, the next user of the block must wait for this work.
func TestABlockThatCameBackToAProducerThatDiedWaitsForTheConsumersWork(t *testing.T) {
	for name, leaves := range map[string]bool{"that left": true, "that did not": false} {
		t.Run(name, func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 2)
			p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
			first := p.send()
			fence := c.fence()
			c.done(c.next(), fence)
			other := r.produce(hire(t, r.svc))
			other.send() // the channel keeps no block of the first producer any more
			assert.Equal(t, []Lease{first}, p.back())
			if leaves {
				p.leave()
			}
			gone, _ := p.end()
			gone()
			l, err := r.owner.allocate(t.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
			require.NoError(t, err)
			assert.Equal(t, []mempool.Fence{fence}, l.Grant().Wait)
			c.reach(fence)
			release(t, l)
			assert.True(t, first.rec.Buffer.Failed, "it was not in the channel")
		})
	}
}

func TestAProducerThatLeavesFirstLeavesNothingBehind(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	unpublished := p.alloc()
	p.leave()
	require.NoError(t, p.Release(false, nil, unpublished.ID()), "its lease lives on")
	_, reclaimed := p.end() // the process lives on
	<-reclaimed
	f := c.next()
	c.done(f, mempool.Fence{})
	c.quit()
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	r.awaitStands(0, 0)
	checkBooks(t, r.svc)
}

func TestLeasesEndWithTheLastProducerOfTheirSessionInTheChannel(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	w := hire(t, r.svc)
	c := r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
	first, second := r.produce(w), r.produce(w)
	a, b := first.send(), second.send()
	f, g := c.next(), c.next()
	first.leave()
	assert.Zero(t, r.kept())
	c.done(g, mempool.Fence{})
	for range 2 {
		second.send()
	}
	assert.Equal(t, []Lease{b}, second.back(), "it is the second producer's, and has come back to it")
	second.leave()
	require.ErrorIs(t, w.Release(false, nil, a.ID()), mempool.ErrReleased, "its frame is in hand")
	require.NoError(t, w.Release(false, nil, b.ID()))
	assert.Equal(t, 3, r.kept())
	c.done(f, mempool.Fence{})
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	c.quit()
	r.awaitStands(0, 0)
}

func TestAProducerCannotLeaveWhileItCannotBeToldWhatIsNeeded(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	p := r.produce(hire(t, r.svc))
	s := r.sit(hire(t, r.svc), MemberSpec{Role: Consumer, Full: mempool.DropOldest})
	cursor := mapWords(t, s.member.Export.Files[2])
	s.enter()
	l := p.send()
	cursor[2], cursor[512] = 1, 1 // the consumer holds frame 1, but has not written the frame's block yet
	require.ErrorIs(t, p.Channel(r.info.ID).Member(p.member.ID).Leave(), mempool.ErrBusy)
	require.NotNil(t, p.rec.Leases[l.ID()])
	cursor[513] = l.Grant().Block
	p.leave()
	require.Nil(t, p.rec.Leases[l.ID()])
}

// The producer's session ends while a consumer is taking a frame. At this moment, the service cannot know which block the frame has.
func TestABufferOfWhichItCannotBeToldIsNotCompleteBeforeItCan(t *testing.T) {
	for name, published := range map[string]bool{"published": true, "half written": false} {
		t.Run(name, func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 4)
			p := r.produce(hire(t, r.svc))
			s := r.sit(hire(t, r.svc), MemberSpec{Role: Consumer, Full: mempool.DropOldest})
			cursor := mapWords(t, s.member.Export.Files[2])
			s.enter()
			first, half, kept := p.send(), p.alloc(), p.alloc()
			require.NoError(t, half.Publish(mempool.Publication{Name: "x", Keep: true}))
			require.NoError(t, half.Release(false))
			half, err := p.getLease(t.Context(), "x", true, 0)
			require.NoError(t, err)
			p.leases[kept.Grant().Block] = kept
			p.publish(kept, mempool.Fence{}) // the channel does not keep the first buffer any more
			taking := func(number, block uint64) {
				atomic.StoreUint64(&cursor[513], block)
				atomic.StoreUint64(&cursor[512], number)
			}
			cursor[2] = 1
			taking(1, 0)
			gone, _ := p.end()
			gone()
			lease := func(l Lease) error {
				got, err := r.owner.leaseOf(t.Context(), l.Grant().Buffer, l.Grant().Generation, false, 0)
				if err == nil {
					release(t, got)
				}
				return err
			}
			require.NoError(t, lease(kept), "the channel names it")
			require.ErrorIs(t, lease(first), mempool.ErrBusy)
			require.ErrorIs(t, lease(half), mempool.ErrBusy)
			require.ErrorContains(t, lease(half), "not known yet")
			assert.Equal(t, 3, r.kept())
			checkBooks(t, r.svc)

			if published {
				taking(1, first.Grant().Block)
				got, err := r.owner.leaseOf(t.Context(), first.Grant().Buffer, first.Grant().Generation, false, patience)
				require.NoError(t, err)
				release(t, got)
				r.want()
				assert.Equal(t, 2, r.kept(), "the first and the one in the channel")
			} else {
				taking(0, 0)
			}
			_, err = r.owner.getLease(t.Context(), "x", false, patience)
			require.ErrorIs(t, err, mempool.ErrProducerDied)
			checkBooks(t, r.svc)
		})
	}
}

func TestFencesOfADeadProducerAreLetGoThoughTheServiceWasNotToldOfThem(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	p.publish(p.alloc(), p.fence())
	f := c.next()
	gone, reclaimed := p.end()
	select {
	case <-reclaimed:
		t.Fatal("work of the process is under way")
	default:
	}
	assert.False(t, p.page.Passed(f.Ready.Word, f.Ready.Value))
	gone()
	assert.True(t, p.page.Passed(f.Ready.Word, f.Ready.Value), "nobody waits for a process that is gone")
	assert.Less(t, p.page.Load(f.Ready.Word)%letGoBy, f.Ready.Value, "and the content is incomplete")
}

func TestAFenceOfWhichNoRecordIsLeftIsLetGo(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 4)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{Full: mempool.DropOldest})
	p.publish(p.alloc(), mempool.Fence{Word: 1, Value: 5})
	f := c.next()
	other := p.alloc()
	for range 100 { // so that another frame overwrites the record of the first frame
		p.publish(other, mempool.Fence{})
	}
	gone, _ := p.end()
	assert.False(t, p.page.Passed(f.Ready.Word, f.Ready.Value))
	gone()
	assert.True(t, p.page.Passed(f.Ready.Word, f.Ready.Value))
}

func TestFencesOfADeadConsumerAreLetGo(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 1}, 4)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	l := p.send()
	fence := c.fence()
	c.done(c.next(), fence)
	gone, _ := c.end()
	p.send()
	assert.Equal(t, []Lease{l}, p.back())
	assert.False(t, c.page.Passed(fence.Word, fence.Value))
	gone()
	assert.True(t, c.page.Passed(fence.Word, fence.Value))
}

func TestAConsumerThatLeftIsForgottenOnceItsWorkIsDone(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	fence := c.fence()
	c.done(c.next(), fence)
	c.quit()
	members := func() int {
		r.svc.mu.Lock()
		defer r.svc.mu.Unlock()
		return len(c.rec.Members)
	}
	assert.Equal(t, 1, members(), "its work is under way")
	_, reclaimed := c.end() // its process lives on
	c.reach(fence)
	<-reclaimed
	assert.Zero(t, members())
}

func TestClaimsOfADeadConsumerGoToOthers(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4, Mode: mempool.WorkQueue}, 8)
	p := r.produce(hire(t, r.svc))
	dying, other := r.consume(hire(t, r.svc), MemberSpec{}), r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	f := dying.next()
	gone, _ := dying.end()
	none, err := other.try()
	require.NoError(t, err)
	assert.Nil(t, none, "its process may be at work on it")
	gone()
	assert.Equal(t, f.Number, other.next().Number)
}

func TestASessionThatEndsBeforeItsMembersEnterLeavesNoSeatTaken(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4}, 8)
	w := hire(t, r.svc)
	r.sit(w, MemberSpec{Role: Producer})
	r.sit(w, MemberSpec{Role: Consumer})
	_, reclaimed := w.end()
	<-reclaimed
	assert.Empty(t, r.svc.ledger.Channels.Get(r.info.ID).Members)
	assert.Zero(t, r.sit(hire(t, r.svc), MemberSpec{Role: Producer}).member.Seat)
}

func TestWriteLeasesThatNoChannelNeedsFailAsAlways(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	p := r.produce(hire(t, r.svc))
	p.send()
	name := p.alloc()
	require.NoError(t, name.Publish(mempool.Publication{Name: "x", Keep: true}))
	require.NoError(t, name.Release(false))
	_, err := p.getLease(t.Context(), "x", true, 0)
	require.NoError(t, err)
	gone, _ := p.end()
	gone()
	_, err = r.owner.getLease(t.Context(), "x", false, 0)
	require.ErrorIs(t, err, mempool.ErrProducerDied)
	assert.Equal(t, 1, r.kept())
}

func TestWhatADeadProducerLeftCountsForItsUser(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	p := r.produce(hire(t, r.svc))
	p.send()
	gone, _ := p.end()
	gone()
	assert.EqualValues(t, 4096, r.owner.View().Stats().Pools[0].User)
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	assert.Zero(t, r.owner.View().Stats().Pools[0].User)
}

func TestNobodyLooksAtAChannelWhoseMembersAreAlive(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	c.done(c.next(), mempool.Fence{})
	tended := func() bool {
		r.svc.mu.Lock()
		defer r.svc.mu.Unlock()
		return r.svc.channels.all[r.info.ID].tended
	}
	assert.False(t, tended())
	gone, _ := p.end()
	gone()
	assert.True(t, tended())
	c.quit()
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	r.eventually(r.nothingLeft)
}

// mapWords maps a file of a channel for writing. A member can do this until the service seals the file.
func mapWords(t testing.TB, f *os.File) []uint64 {
	t.Helper()
	st, err := f.Stat()
	require.NoError(t, err)
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(mem)) })
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), len(mem)/8)
}

func TestMembersThatWriteNonsenseStopNobody(t *testing.T) {
	for seed := range uint64(40) {
		dice := rand.New(rand.NewPCG(seed, 7))
		mode := []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue}[seed%2]
		r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2, Mode: mode}, 16)
		var files [][]uint64
		var seats []*seat
		nonsense := func() {
			for range 200 {
				words := files[dice.IntN(len(files))]
				at := dice.IntN(min(len(words), 1<<(6+dice.IntN(8))))
				atomic.StoreUint64(&words[at], dice.Uint64()>>dice.IntN(64))
			}
		}
		for i := range 8 {
			spec := MemberSpec{Role: []MemberRole{Producer, Consumer}[i%2]}
			if mode == mempool.Broadcast && spec.Role == Consumer {
				spec.Full = []mempool.FullPolicy{mempool.Block, mempool.DropOldest}[dice.IntN(2)]
			}
			s := r.sit(hire(t, r.svc), spec)
			files = append(files, mapWords(t, s.member.Export.Files[2]), mapWords(t, s.member.Export.Files[1]))
			seats = append(seats, s)
			allocate(t, s.Session, r.pool, 10)
			s.enter()
		}
		var gone []func()
		for i, s := range seats {
			nonsense()
			switch err := s.Channel(r.info.ID).Member(s.member.ID).Leave(); {
			case i%3 == 0 && err != nil:
				require.ErrorIs(t, err, mempool.ErrBusy)
			case i%3 == 1:
				end, _ := s.end()
				gone = append(gone, end)
			}
			nonsense()
			r.want()
		}
		nonsense()
		if seed%3 == 0 {
			require.NoError(t, r.owner.Channel(r.info.ID).Close())
		}
		for _, end := range gone {
			nonsense()
			end()
		}
		for _, s := range seats {
			s.die()
		}
		checkBooks(t, r.svc)
		require.NoError(t, r.owner.DestroyPool(r.pool.rec.Info.ID))
		<-r.pool.closed
		assert.True(t, r.nothingLeft())
	}
}

// want makes the service check what the pool's channels still need.
func (r *channelRig) want() {
	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	r.pool.demand.tidyLocked()
}
