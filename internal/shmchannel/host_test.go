package shmchannel

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func (r *rig) sweep() (ids []uint64) {
	r.t.Helper()
	gone, err := r.host.Sweep(nil, func(t Fence) bool { return r.reached != nil && r.reached(t) })
	require.NoError(r.t, err)
	for _, m := range gone {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestAChannelThatCannotBe(t *testing.T) {
	for _, spec := range []Spec{{Capacity: 0}, {Capacity: MaxCapacity + 1}, {Capacity: -1}, {Mode: 2, Capacity: 1}, {Policy: 4, Capacity: 1}} {
		_, err := NewHost(spec, nil, nil)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestEveryCapacityHasALayout(t *testing.T) {
	for capacity := 1; capacity <= MaxCapacity; capacity++ {
		l := geometryFor(capacity)
		require.True(t, l.valid(), l)
		require.True(t, l.slots == MinSlots || l.slots < 4*uint64(capacity), l)
	}
}

func TestALateConsumerBeginsWithTheNewestOrTheOldestFrame(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p := r.producer(16)
	early := r.consumer(MemberSpec{Policy: DropOldest})
	for range 6 {
		p.publish()
	}
	newest, oldest := r.consumer(MemberSpec{}), r.consumer(MemberSpec{Oldest: true})
	f := newest.take()
	assert.EqualValues(t, 6, f.Number)
	assert.Zero(t, f.Missed)
	newest.none()
	require.ErrorIs(t, p.publishError(), ErrFull, "the oldest is promised")
	for n := uint64(3); n <= 6; n++ {
		f := oldest.take()
		assert.Equal(t, n, f.Number)
		assert.Zero(t, f.Missed)
		oldest.release(f)
	}
	newest.release(f)
	p.publish()
	assert.EqualValues(t, 3, early.take().Missed)
}

func TestAConsumerThatJoinsWakesProducersAlone(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	r.producer(4)
	s := r.host.sequencer
	published, freed := s.published.word.Load(), s.freed.word.Load()
	r.consumer(MemberSpec{})
	assert.Equal(t, published, s.published.word.Load(), "other consumers sleep on")
	assert.NotEqual(t, freed, s.freed.word.Load())
	r.producer(4)
	assert.NotEqual(t, published, s.published.word.Load(), "consumers need the track of a producer that joined")
}

func TestOnlyTheWriterOfAFileCanWriteIt(t *testing.T) {
	r := newRig(t, Spec{Capacity: 4})
	p, c := r.producer(1), r.consumer(MemberSpec{})
	for name, f := range map[string]*os.File{"roster": r.host.RosterFile(), "track": p.member.Reader(), "cursor": c.member.Reader()} {
		_, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.ErrorIs(t, err, unix.EACCES, name)
		require.Error(t, f.Truncate(0), name)
		_, err = f.WriteAt([]byte{1}, 0)
		require.ErrorIs(t, err, unix.EBADF, name)
		st, err := f.Stat()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode(), "another user cannot open it again")
	}
	require.ErrorIs(t, r.host.SequencerFile().Truncate(0), unix.EPERM)
}

func TestAMemberCannotSealWhatOthersNeed(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	c := r.openConsumer(MemberSpec{})
	for _, f := range []*os.File{r.host.SequencerFile(), r.host.RosterFile(), c.member.File(), c.member.Reader()} {
		require.ErrorIs(t, seal(f, unix.F_SEAL_FUTURE_WRITE), unix.EPERM)
	}
	r.producer(2).publish()
}

func TestFilesThatAreNotOfTheChannelAreRefused(t *testing.T) {
	r, other := newRig(t, Spec{Capacity: 4}), newRig(t, Spec{Capacity: 400})
	p, c := r.openProducer(1), r.openConsumer(MemberSpec{})
	q, d := other.openProducer(1), other.openConsumer(MemberSpec{})
	config := r.config(p.member)
	for name, spoil := range map[string]func(*MemberConfig){
		"another's roster size": func(c *MemberConfig) { c.Roster = c.Sequencer },
		"another's sequencer":   func(c *MemberConfig) { c.Sequencer = other.host.SequencerFile() },
		"another's track":       func(c *MemberConfig) { c.Own = q.member.File() },
		"a file on a disk": func(c *MemberConfig) {
			f, err := os.CreateTemp(t.TempDir(), "")
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			require.NoError(t, f.Truncate(RosterBytes))
			c.Roster = f
		},
		"a roster of nothing": func(c *MemberConfig) {
			f, err := makeFile(nil, "roster", RosterBytes)
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			c.Roster = f
		},
	} {
		t.Run(name, func(t *testing.T) {
			spoiled := config
			spoil(&spoiled)
			_, err := OpenProducer(spoiled)
			require.ErrorIs(t, err, ErrFile)
		})
	}
	_, err := OpenConsumer(ConsumerConfig{MemberConfig: MemberConfig{
		Roster: r.host.RosterFile(), Sequencer: r.host.SequencerFile(), Own: d.member.File(), ID: 1}})
	require.ErrorIs(t, err, ErrFile)
	require.ErrorIs(t, c.AddTrack(5, 99, q.member.File()), ErrFile)
	require.ErrorIs(t, p.AddCursor(5, 99, d.member.File()), ErrFile)
	for _, seat := range []int{-1, MaxProducers} {
		require.ErrorIs(t, c.AddTrack(seat, 9, p.member.File()), ErrInvalid)
		_, err := OpenProducer(MemberConfig{Seat: seat, ID: 1})
		require.ErrorIs(t, err, ErrInvalid)
	}
	for _, seat := range []int{-1, MaxConsumers} {
		require.ErrorIs(t, p.AddCursor(seat, 9, c.member.File()), ErrInvalid)
		_, err := OpenConsumer(ConsumerConfig{MemberConfig: MemberConfig{Seat: seat, ID: 1}})
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestAConsumerThatLeavesHoldsNoPlaceButWhatItHasInHand(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(8), r.consumer(MemberSpec{})
	p.publish()
	p.publish()
	f, g := c.take(), c.take()
	c.release(f)
	p.publish()
	require.NoError(t, c.Leave())
	require.ErrorIs(t, c.takeError(), ErrLeft)
	require.NoError(t, r.host.Leave(c.member))
	for range 3 {
		p.publish()
	}
	assert.Equal(t, []uint64{1, 3, 4}, p.back())
	assert.Empty(t, r.sweep(), "it has a frame in hand")
	c.release(g)
	require.ErrorIs(t, c.Release(g, Fence{}), ErrReleased)
	assert.Equal(t, []uint64{c.member.ID}, r.sweep())
	assert.Equal(t, []uint64{2}, p.back())
	assert.Empty(t, r.sweep())
}

func TestWhatAnExpelledConsumerHasInHandIsItsOwnUntilItsProcessIsGone(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, Spec{Capacity: 2})
			p, c := r.producer(8), r.consumer(MemberSpec{Policy: policy})
			p.publish()
			f := c.take()
			p.publish()
			require.NoError(t, r.host.Expel(c.member, Lost))
			require.ErrorIs(t, c.takeError(), ErrLeft)
			for range 4 {
				p.publish()
			}
			assert.Equal(t, []uint64{2, 3, 4}, p.back())
			assert.Empty(t, r.sweep())
			if policy == Block {
				c.release(f)
				assert.Equal(t, []uint64{1}, p.back(), "it may still release it")
				return
			}
			require.NoError(t, r.host.Gone(c.member))
			assert.Equal(t, []uint64{c.member.ID}, r.sweep())
			assert.Equal(t, []uint64{1}, p.back())
		})
	}
}

// A consumer may read the roster before the host expels it, and claim a frame afterwards. If the host had given the consumer's seat to
// another member by then, the claim would belong to that member.
func TestAnExpelledConsumerKeepsItsSeatUntilItsProcessIsGone(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 2})
	c := r.consumer(MemberSpec{})
	require.NoError(t, r.host.Expel(c.member, Lost))
	assert.Empty(t, r.sweep())
	assert.NotEqual(t, c.member.Seat, r.consumer(MemberSpec{}).member.Seat)
	require.NoError(t, r.host.Gone(c.member))
	assert.Equal(t, []uint64{c.member.ID}, r.sweep())
	assert.Equal(t, c.member.Seat, r.consumer(MemberSpec{}).member.Seat)
}

func TestAConsumerThatLeftIsThereUntilItsWorkIsDone(t *testing.T) {
	reached := false
	r := newRig(t, Spec{Capacity: 1})
	r.reached = func(fence Fence) bool {
		assert.Equal(t, Fence{Timeline: 5, Word: 2, Value: 3}, fence)
		return reached
	}
	p, c := r.producer(4), r.consumer(MemberSpec{Timeline: 5})
	p.publish()
	require.NoError(t, c.Release(c.take(), Fence{Word: 2, Value: 3}))
	require.NoError(t, c.Leave())
	require.NoError(t, r.host.Leave(c.member))
	assert.Empty(t, r.sweep())
	p.publish()
	back, err := p.Reclaim()
	require.NoError(t, err)
	require.Len(t, back, 1)
	assert.Len(t, back[0].Fences, 1)
	reached = true
	assert.Len(t, r.sweep(), 1)
}

func TestAConsumerThatLeftAQueueStillAcknowledges(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 4})
	p, c := r.producer(4), r.consumer(MemberSpec{})
	p.publish()
	f := c.take()
	c.release(f)
	require.NoError(t, c.Leave())
	require.NoError(t, r.host.Leave(c.member))
	assert.Empty(t, r.sweep(), "it has a claim")
	require.NoError(t, c.Acknowledge(f))
	assert.Len(t, r.sweep(), 1)
	assert.Equal(t, []uint64{1}, p.back())
}

func TestFramesOfAProducerThatLeftAreTaken(t *testing.T) {
	for name, spec := range map[string]Spec{"broadcast": {Capacity: 3}, "queue": {Mode: Queue, Capacity: 3}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, spec)
			dead, p, c := r.producer(8), r.producer(8), r.consumer(MemberSpec{})
			n := dead.publish()
			first, content := dead.record.Block, dead.record.Buffer
			dead.publish()
			second := dead.record.Block
			require.NoError(t, r.host.Gone(dead.member))
			require.ErrorIs(t, dead.publishError(), ErrLeft)
			assert.Empty(t, r.sweep())
			blocks, all := inUse(r.host, dead.member)
			assert.False(t, all)
			assert.Contains(t, blocks, first)
			assert.Contains(t, blocks, second)
			assert.Len(t, blocks, 2)

			p.publish()
			f := c.take()
			assert.Equal(t, n, f.Number)
			assert.Equal(t, content, f.Buffer)
			g := c.take()
			require.EqualValues(t, 2, g.Number)
			if spec.Mode == Queue {
				require.NoError(t, c.Acknowledge(f))
				require.NoError(t, c.Acknowledge(g))
			}
			c.release(g)
			if spec.Mode == Broadcast {
				require.ErrorIs(t, p.publishError(), ErrFull)
				require.NoError(t, c.Leave())
				require.NoError(t, r.host.Leave(c.member))
				for range 4 {
					p.publish()
				}
			}
			assert.Equal(t, []uint64{dead.member.ID}, r.sweep(), "no frame of its own is kept")
			blocks, all = inUse(r.host, dead.member)
			assert.False(t, all)
			assert.Contains(t, blocks, first)
			c.release(f)
			blocks, all = inUse(r.host, dead.member)
			assert.False(t, all)
			assert.NotContains(t, blocks, first)
		})
	}
}

// An expelled consumer keeps its frames in hand. Producers do not wait for it, so a new frame may overwrite the record of a frame in hand.
func TestBlocksOfAProducerThatLeftWhileAnExpelledConsumerHasFrames(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(200), r.consumer(MemberSpec{})
	p.publish()
	block := p.record.Block
	c.take()
	require.NoError(t, r.host.Expel(c.member, Lost))
	require.NoError(t, r.host.Expel(p.member, Lost))
	blocks, all := inUse(r.host, p.member)
	assert.False(t, all)
	assert.Contains(t, blocks, block)

	q := r.producer(200)
	for range 100 {
		q.publish()
	}
	assert.Equal(t, []uint64{p.member.ID}, r.sweep())
	_, all = inUse(r.host, p.member)
	assert.True(t, all, "nobody knows the block of frame 1 any more")
	require.NoError(t, r.host.Gone(c.member))
	blocks, all = inUse(r.host, p.member)
	assert.False(t, all)
	assert.Empty(t, blocks)
}

func TestAConsumerThatIsTakingAFrameMayUseAnyBlock(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(8), r.consumer(MemberSpec{Policy: DropOldest})
	p.publish()
	c.hold(0, 1)
	require.NoError(t, r.host.Gone(p.member))
	_, all := inUse(r.host, p.member)
	assert.True(t, all)
}

func TestASeatIsUsedAgain(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p := r.producer(8)
	watcher := r.consumer(MemberSpec{Policy: DropOldest})
	for range 20 {
		c, q := r.consumer(MemberSpec{Policy: Latest}), r.producer(8)
		assert.Equal(t, 1, c.member.Seat)
		assert.Equal(t, 1, q.member.Seat)
		q.publish()
		f, g := c.take(), watcher.take()
		assert.Equal(t, q.record.Buffer, f.Buffer)
		assert.Equal(t, q.member.ID, g.Producer.ID)
		watcher.release(g)
		require.NoError(t, r.host.Gone(c.member))
		require.NoError(t, r.host.Gone(q.member))
		for range 2 {
			p.publish()
			watcher.release(watcher.take())
		}
		assert.Len(t, r.sweep(), 2)
		p.reclaim()
	}
}

// Each change of the roster increases the roster's version by 1. The tail has only 10 bits of the version, so the version in the tail
// repeats after 1024 changes.
func TestAProducerThatWasIdleSeesThatTheRosterHasChangedAThousandTimes(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p := r.producer(4)
	p.publish()
	version := r.host.sequencer.loadTail().version()
	for r.host.sequencer.loadTail().version() != (version-1)&1023 {
		m, err := r.host.Add(MemberSpec{Role: ConsumerRole})
		require.NoError(t, err)
		require.NoError(t, r.host.Gone(m)) // member m never joined
		m, err = r.host.Add(MemberSpec{Role: ConsumerRole})
		require.NoError(t, err)
		require.NoError(t, r.host.Join(m))
		if r.host.sequencer.loadTail().version() == (version-1)&1023 {
			break
		}
		require.NoError(t, r.host.Gone(m))
		r.sweep()
	}
	c := r.consumer(MemberSpec{})
	require.Equal(t, version, r.host.sequencer.loadTail().version(), "it looks like that of a thousand changes before")
	for _, m := range r.host.Members(nil, ConsumerRole) {
		require.NoError(t, p.AddCursor(m.Seat, m.ID, m.File()))
	}
	require.ErrorIs(t, p.publishError(), ErrFull)
	assert.EqualValues(t, 1, c.take().Number)
}

// The service may stop after it has changed the roster and before it has stored the roster's new version in the tail.
func TestAChangeThatIsNotInTheTailYetHoldsNobodyUp(t *testing.T) {
	r := newRig(t, Spec{Capacity: 1})
	p := r.producer(4)
	p.publish()
	c := r.openConsumer(MemberSpec{})
	p.publish()
	s := r.host.roster.seat(c.member)
	s.id.Store(c.member.ID)
	s.state.Store(seatActive)
	r.host.roster.version.Add(1)
	require.NoError(t, p.AddCursor(c.member.Seat, c.member.ID, c.member.File()))
	p.view.known = true // the file arrived before the change took effect
	p.publish()
}

func TestJoiningWhileOthersPublish(t *testing.T) {
	const frames, joins = 20_000, 40
	r := newRig(t, Spec{Capacity: 16})
	p, q := r.producer(200), r.producer(200)
	var all sync.WaitGroup
	for _, p := range []*testProducer{p, q} {
		all.Go(func() {
			for range frames {
				p.mustPublish()
			}
		})
	}
	leaving := make(chan *testConsumer, joins)
	for i := range joins {
		policy := []Policy{Block, DropOldest, Latest}[i%3]
		c := r.consumer(MemberSpec{Oldest: i%2 == 0, Policy: policy})
		all.Go(func() {
			next := c.roster.consumers[c.seat].start.Load()
			var f Frame
			for range 200 {
				if err := c.Take(within(t), &f); !assert.NoError(t, err) {
					break
				}
				assert.Equal(t, next, f.Number-f.Missed)
				assert.True(t, !policy.blocks() || f.Missed == 0, "frame %d: %d missed", f.Number, f.Missed)
				next = f.Number + 1
				assert.NoError(t, c.Release(&f, Fence{}))
				if f.Number == 2*frames {
					break
				}
			}
			assert.NoError(t, c.Leave())
			leaving <- c
		})
		if i >= 4 {
			require.NoError(t, r.host.Leave((<-leaving).member))
			r.sweep()
		}
	}
	for range 4 {
		require.NoError(t, r.host.Leave((<-leaving).member))
	}
	all.Wait()
	assert.EqualValues(t, 2*frames, r.host.Published())
}

func TestAsManyMembersAsThereAreSeats(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	producers := make([]*testProducer, 4) // few: each one maps every consumer's file, and the system limits the mappings
	for i := range producers {
		producers[i] = r.producer(8)
	}
	for range MaxConsumers {
		r.consumer(MemberSpec{})
	}
	for range MaxProducers - len(producers) {
		m, err := r.host.Add(MemberSpec{Role: ProducerRole})
		require.NoError(t, err)
		require.NoError(t, r.host.Join(m))
	}
	for _, role := range []Role{ProducerRole, ConsumerRole} {
		_, err := r.host.Add(MemberSpec{Role: role})
		require.ErrorIs(t, err, ErrNoSeat)
	}
	for i, p := range producers {
		n := p.publish()
		require.EqualValues(t, i+1, n)
		for _, c := range r.consumers {
			f := c.take()
			require.Equal(t, n, f.Number)
			require.Equal(t, p.record.Buffer, f.Buffer)
			c.release(f)
		}
	}
	assert.Equal(t, []uint64{1}, producers[0].back())
}

func TestABroadcastGivesFramesOfProducersThatLeftUpForASeat(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2 * MaxProducers})
	slow := r.consumer(MemberSpec{Policy: DropOldest})
	for range MaxProducers {
		p := r.producer(1)
		p.publish()
		require.NoError(t, r.host.Gone(p.member))
		require.NoError(t, p.Close())
	}
	r.sweep()
	_, err := r.host.Add(MemberSpec{Role: ProducerRole})
	require.ErrorIs(t, err, ErrNoSeat)
	require.False(t, r.host.GiveUp(), "the consumer has taken none")
	slow.release(slow.take())
	slow.release(slow.take())
	require.True(t, r.host.GiveUp())
	r.sweep()

	p := r.producer(1)
	assert.Equal(t, 0, p.member.Seat, "it gave up no more than that takes")
	late := r.consumer(MemberSpec{Oldest: true})
	for n := uint64(2); n <= MaxProducers; n++ {
		f := late.take()
		require.Equal(t, n, f.Number)
		late.release(f)
	}
	require.EqualValues(t, 3, slow.take().Number)
	require.EqualValues(t, MaxProducers+1, p.publish())
	require.EqualValues(t, MaxProducers+1, late.take().Number)
}

func TestAConsumerBeginsAfterTheNewestFrameIfThatWasGivenUp(t *testing.T) {
	for _, oldest := range []bool{false, true} {
		r := newRig(t, Spec{Capacity: 2})
		dead := r.producer(1)
		dead.publish()
		require.NoError(t, r.host.Gone(dead.member))
		require.NoError(t, dead.Close())
		require.True(t, r.host.GiveUp())
		require.False(t, r.host.GiveUp(), "there is no other")
		r.sweep()
		c, p := r.consumer(MemberSpec{Oldest: oldest}), r.producer(1)
		require.Equal(t, dead.member.Seat, p.member.Seat)
		ok, err := c.TryTake(&Frame{})
		require.NoError(t, err)
		require.False(t, ok)
		require.EqualValues(t, 2, p.publish())
		require.EqualValues(t, 2, c.take().Number)
	}
}

func TestAClosedQueueTakesConsumersAndNoProducers(t *testing.T) {
	r := newRig(t, Spec{Mode: Queue, Capacity: 2})
	p := r.producer(2)
	p.publish()
	waiting := r.openConsumer(MemberSpec{})
	late := r.openProducer(0)
	require.NoError(t, r.host.Close())
	require.ErrorIs(t, r.host.Join(late.member), ErrClosed)
	_, err := r.host.Add(MemberSpec{Role: ProducerRole})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, r.host.Join(waiting.member))
	c := r.consumer(MemberSpec{})
	f := c.take()
	waiting.none() // the other consumer may still requeue the frame
	assert.Empty(t, p.back(), "the frame is in hand")
	c.acknowledge(f)
	require.ErrorIs(t, waiting.takeError(), ErrEnded)
	assert.Equal(t, []uint64{1}, p.back())
	r.host.Destroy()
	assert.Zero(t, r.host.Waiting())
	_, err = r.host.Add(MemberSpec{Role: ConsumerRole})
	require.ErrorIs(t, err, ErrClosed)
}

func TestAClosedChannelTakesNoMembers(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	waiting := r.openConsumer(MemberSpec{})
	require.NoError(t, r.host.Close())
	require.NoError(t, r.host.Close(), "twice is once")
	require.ErrorIs(t, r.host.Join(waiting.member), ErrClosed)
	_, err := r.host.Add(MemberSpec{Role: ConsumerRole})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, waiting.takeError(), ErrLeft)
}

func TestAConsumerThatNeedsProducersEndsWithTheLastOfThem(t *testing.T) {
	for _, mode := range []Mode{Broadcast, Queue} {
		r := newRig(t, Spec{Mode: mode, Capacity: 4})
		c, other := r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
		c.needsProducers = true
		found, abandoned := c.Producers()
		require.Empty(t, found)
		require.Zero(t, abandoned)
		c.none()
		first, second := r.producer(4), r.producer(4)
		first.publish()
		second.publish()
		require.NoError(t, r.host.Expel(first.member, Lost+1))
		found, abandoned = c.Producers()
		require.Equal(t, []ProducerState{{1, Lost + 1}, {PID: 2}}, found)
		require.Zero(t, abandoned)
		frames := []*Frame{c.take(), c.take()}
		c.none()
		require.NoError(t, r.host.Leave(second.member))
		found, abandoned = c.Producers()
		require.Equal(t, []ProducerState{{1, Lost + 1}, {2, Left}}, found)
		require.WithinDuration(t, time.Now(), abandoned, time.Hour)
		if mode == Queue {
			c.none() // a frame may come back
			c.acknowledge(frames...)
		}
		require.ErrorIs(t, c.takeError(), ErrAbandoned)
		for range 2 {
			if mode == Broadcast {
				other.take()
			}
		}
		other.none()
		_, err := r.host.Sweep(nil, func(Fence) bool { return true })
		require.NoError(t, err)
		r.producer(4)
		now, _ := c.Producers()
		require.Equal(t, map[Mode][]ProducerState{
			Broadcast: {{1, Lost + 1}, {2, Left}, {PID: 3}},
			Queue:     {{PID: 3}, {2, Left}}, // no frame of the first is kept, so its seat was free
		}[mode], now)
		c.none()
		require.NoError(t, r.host.Close())
		require.ErrorIs(t, c.takeError(), ErrEnded)
		require.NoError(t, c.Close())
		last, _ := c.Producers()
		require.Equal(t, now, last, "they are known after the memory is unmapped")
	}
}
