package service

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

func TestWhoMayJoinAChannelAndHow(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2, Mode: mempool.WorkQueue}, 8)
	w := hire(t, r.svc)
	id := r.info.ID
	stranger, err := r.svc.OpenSession(mempool.Peer{UID: 4711, GID: 4711}, "", func(Notice) {})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		session *Session
		channel uint64
		spec    MemberSpec
		want    error
		says    string
	}{
		"no role":                   {w.Session, id, MemberSpec{}, mempool.ErrInvalid, "unknown role"},
		"another role":              {w.Session, id, MemberSpec{Role: "listener"}, mempool.ErrInvalid, "listener"},
		"a producer with a policy":  {w.Session, id, MemberSpec{Role: Producer, Full: mempool.Block}, mempool.ErrInvalid, "are for consumers"},
		"a producer that begins":    {w.Session, id, MemberSpec{Role: Producer, Oldest: true}, mempool.ErrInvalid, "are for consumers"},
		"a policy in a queue":       {w.Session, id, MemberSpec{Role: Consumer, Full: mempool.Block}, mempool.ErrInvalid, "is a queue"},
		"no channel":                {w.Session, 99, MemberSpec{Role: Consumer}, mempool.ErrClosed, "99"},
		"another user":              {stranger, id, MemberSpec{Role: Consumer}, mempool.ErrClosed, "4711"},
		"a session without notices": {r.owner, id, MemberSpec{Role: Consumer}, mempool.ErrInvalid, "gets no notices"},
	} {
		_, err := c.session.Channel(c.channel).Join(c.spec)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.says, name)
	}
	require.NoError(t, r.owner.Channel(id).Close())
	_, err = w.Channel(id).Join(MemberSpec{Role: Consumer})
	require.ErrorIs(t, err, mempool.ErrClosed)
}

func TestAPolicyOfAConsumerThatThereIsNot(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	_, err := hire(t, r.svc).Channel(r.info.ID).Join(MemberSpec{Role: Consumer, Full: "sometimes"})
	require.ErrorIs(t, err, mempool.ErrInvalid)
	require.ErrorContains(t, err, "sometimes")
}

func TestAMemberEntersOnceAndIsItsSessionsAlone(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	w, other := hire(t, r.svc), hire(t, r.svc)
	c := r.consume(w, MemberSpec{})
	id, m := r.info.ID, c.member.ID
	_, err := w.Channel(id).Member(m).Enter()
	require.ErrorIs(t, err, mempool.ErrInvalid)
	for _, call := range []func(Member) error{
		func(m Member) error { _, err := m.Enter(); return err },
		Member.Leave,
		func(m Member) error { return m.Doubt(1, 0) },
	} {
		require.ErrorIs(t, call(other.Channel(id).Member(m)), mempool.ErrClosed)
		require.ErrorIs(t, call(w.Channel(id).Member(99)), mempool.ErrNotFound)
		require.ErrorIs(t, call(w.Channel(id).Member(0)), mempool.ErrNotFound)
		require.ErrorIs(t, call(w.Channel(99).Member(m)), mempool.ErrClosed)
	}
	require.NoError(t, w.Channel(id).Member(m).Doubt(3, 0))
	p := r.produce(other)
	require.ErrorIs(t, other.Channel(id).Member(p.member.ID).Doubt(3, 0), mempool.ErrInvalid)
	c.quit()
	require.ErrorIs(t, w.Channel(id).Member(m).Leave(), mempool.ErrClosed, "it has no seat any more")
	_, err = w.Channel(id).Member(m).Enter()
	require.ErrorIs(t, err, mempool.ErrClosed)
	late := r.sit(w, MemberSpec{Role: Consumer})
	late.leave() // without having entered
	_, err = w.Channel(id).Member(late.member.ID).Enter()
	require.ErrorIs(t, err, mempool.ErrClosed)
}

func TestMembersGetEachOthersFilesBeforeTheyTakePart(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	a, b := hire(t, r.svc), hire(t, r.svc)
	came := func(s *seat, role MemberRole) MemberCame {
		file := r.svc.channels.all[r.info.ID].File(r.svc.ledger.Channels.Get(r.info.ID).Members[s.member.ID])
		assert.NotEqual(t, s.member.Export.Files[2], file, "the others only read it")
		return MemberCame{Channel: r.info.ID, Role: role, Seat: s.member.Seat, Member: s.member.ID, File: file}
	}
	first := r.sit(a, MemberSpec{Role: Consumer})
	second := r.sit(a, MemberSpec{Role: Consumer})
	idle := r.sit(b, MemberSpec{Role: Consumer}) // never enters
	for _, c := range []*seat{first, second} {
		others, err := a.Channel(r.info.ID).Member(c.member.ID).Enter()
		require.NoError(t, err)
		require.Empty(t, others)
	}
	p := r.sit(b, MemberSpec{Role: Producer})
	others, err := b.Channel(r.info.ID).Member(p.member.ID).Enter()
	require.NoError(t, err)
	assert.Equal(t, []MemberCame{came(first, Consumer), came(second, Consumer)}, others)
	assert.Equal(t, []MemberCame{came(p, Producer)}, told[MemberCame](a), "once, though it has two consumers")
	assert.Empty(t, told[MemberCame](b))

	others, err = b.Channel(r.info.ID).Member(idle.member.ID).Enter()
	require.NoError(t, err)
	assert.Equal(t, []MemberCame{came(p, Producer), came(idle, Consumer)}, others, "its own producer is to know it, too")
	assert.Empty(t, told[MemberCame](a))
	assert.Empty(t, told[MemberCame](b))
}

func TestFramesGoFromProducersToConsumers(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2, Mode: mode}, 8)
			p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
			for range 3 {
				l := p.send()
				f := c.next()
				assert.Equal(t, l.Grant().Block, f.Block)
				c.done(f, mempool.Fence{})
			}
			late := r.consume(hire(t, r.svc), MemberSpec{Oldest: true})
			want := uint64(2)
			if mode == mempool.WorkQueue {
				want = 4 // in a queue, the first three frames are gone
				p.send()
			}
			assert.Equal(t, want, late.next().Number)
			for _, l := range p.back() {
				release(t, l)
			}
			checkBooks(t, r.svc)
		})
	}
}

func TestMembersOfASessionAreBounded(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	w := hire(t, r.svc)
	var last *seat
	for range mempool.MaxMembers {
		last = r.sit(w, MemberSpec{Role: Consumer})
	}
	_, err := w.Channel(r.info.ID).Join(MemberSpec{Role: Producer})
	require.ErrorIs(t, err, mempool.ErrLimit)
	last.leave()
	r.sit(w, MemberSpec{Role: Producer})
	_, err = w.Channel(r.info.ID).Join(MemberSpec{Role: Consumer})
	require.ErrorIs(t, err, mempool.ErrLimit)
}

func TestAChannelHasSoManyProducers(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	w := hire(t, r.svc)
	for range shmchannel.MaxProducers {
		r.sit(w, MemberSpec{Role: Producer})
	}
	_, err := hire(t, r.svc).Channel(r.info.ID).Join(MemberSpec{Role: Producer})
	require.ErrorIs(t, err, mempool.ErrLimit)
	require.ErrorContains(t, err, "63 producers")
}

func TestTheServiceHasSoManyChannelsAndMembers(t *testing.T) {
	svc, owner := limited(t, Limits{Channels: 1, Members: 2})
	p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 8 * 4096})
	spec := mempool.ChannelSpec{Name: "a", Pool: p.rec.Info.ID, Capacity: 2}
	info, err := owner.MakeChannel(spec)
	require.NoError(t, err)
	spec.Name = "b"
	_, err = owner.MakeChannel(spec)
	refused(t, err, "channels", 1, "the service")
	w := hire(t, svc)
	for range 2 {
		_, err = w.Channel(info.ID).Join(MemberSpec{Role: Consumer})
		require.NoError(t, err)
	}
	_, err = w.Channel(info.ID).Join(MemberSpec{Role: Consumer})
	refused(t, err, "members", 2, "the service")
	require.NoError(t, owner.Channel(info.ID).Close())
	info, err = owner.MakeChannel(spec)
	require.NoError(t, err)
	_, err = w.Channel(info.ID).Join(MemberSpec{Role: Consumer})
	require.NoError(t, err)
}

func TestTimelinesOfMembersAreTheOtherRolesToMap(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	p, c, d := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{}), r.consume(hire(t, r.svc), MemberSpec{})
	for _, pair := range [][2]*worker{{p.worker, c.worker}, {c.worker, p.worker}, {p.worker, d.worker}} {
		_, err := pair[0].FindTimeline(pair[1].id)
		require.NoError(t, err)
	}
	_, err := c.FindTimeline(d.id)
	require.ErrorIs(t, err, mempool.ErrStale, "they are of the same role")

	p.send()
	f := c.next()
	assert.Equal(t, p.id, f.Producer.Timeline)
	gone, _ := p.end()
	gone()
	_, err = c.FindTimeline(p.id)
	require.NoError(t, err, "a frame of it is still in the channel")
	assert.Empty(t, told[Forget](c.worker))
	c.done(f, mempool.Fence{})
	c.quit()
	d.quit() // from now on, only the channel itself keeps the frame
	require.NoError(t, r.owner.Channel(r.info.ID).Close())
	assert.Equal(t, []Forget{{Timelines: []uint64{p.id}}}, told[Forget](c.worker))
	_, err = c.FindTimeline(p.id)
	require.ErrorIs(t, err, mempool.ErrStale)
}

func TestAMemberOfASessionWithoutASealedTimelineHasNone(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	w := new(worker)
	var err error
	w.Session, err = r.svc.OpenSession(mempool.Self(), "", func(n Notice) { w.notices = append(w.notices, n) })
	require.NoError(t, err)
	_, _, err = w.Timeline()
	require.NoError(t, err)
	p := r.produce(w)
	c := r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	assert.Zero(t, c.next().Producer.Timeline)
}

func TestAConsumerMapsTheBlocksOfThePoolThatBuffersUse(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 2)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	l := p.send()
	block := l.Grant().Block
	_, err := p.Channel(r.info.ID).MapBlock(block)
	require.ErrorIs(t, err, mempool.ErrDenied, "it is no consumer")
	_, err = c.Channel(r.info.ID).MapBlock(block + 100)
	require.ErrorIs(t, err, mempool.ErrNotFound)
	b, err := c.Channel(r.info.ID).MapBlock(block)
	require.NoError(t, err)
	assert.Equal(t, MappedBlock{Generation: l.Grant().Generation, Bytes: 4096, Export: b.Export}, b)
	assert.Len(t, b.Export.Data, 8)
	_, err = c.Channel(r.info.ID).MapBlock(block)
	require.NoError(t, err, "asked again, it is told again")

	c.done(c.next(), mempool.Fence{})
	release(t, l) // although the buffer is in the channel: a mistake of the producer
	_, err = c.Channel(r.info.ID).MapBlock(block)
	require.ErrorIs(t, err, mempool.ErrNotFound, "no buffer uses it")
	_, err = r.owner.TrimPool(r.pool.rec.Info.ID, 0)
	require.NoError(t, err)
	assert.Equal(t, []Recall{{Blocks: []uint64{block}}}, told[Recall](c.worker))
	_, held := r.stands()
	assert.EqualValues(t, 1, held)
	require.NoError(t, c.Dropped([]uint64{block}))
	_, held = r.stands()
	assert.Zero(t, held)
	checkBooks(t, r.svc)
}

func TestAConsumerMapsSoManyBlocks(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 8)
	r.svc.ledger.Limits.SessionBlocks = 1
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	first, second := p.send().Grant().Block, p.send().Grant().Block
	_, err := c.Channel(r.info.ID).MapBlock(first)
	require.NoError(t, err)
	_, err = c.Channel(r.info.ID).MapBlock(second)
	refused(t, err, "session-blocks", 1, c.rec.String())
	require.NoError(t, c.Dropped([]uint64{first}))
	_, err = c.Channel(r.info.ID).MapBlock(second)
	require.NoError(t, err)
}

func TestABlockWhoseExportCannotBeMadeIsNotMapped(t *testing.T) {
	svc := newService(t)
	owner := open(t, svc)
	pool, backing := fakePool(t, owner, 1<<16)
	info, err := owner.MakeChannel(mempool.ChannelSpec{Name: "frames", Pool: pool.rec.Info.ID, Capacity: 2})
	require.NoError(t, err)
	r := &channelRig{t, svc, owner, pool, info}
	p, c := r.produce(hire(t, svc)), r.consume(hire(t, svc), MemberSpec{})
	l := p.alloc()
	backing.set("Export", mempool.ErrInternal)
	_, err = c.Channel(info.ID).MapBlock(l.Grant().Block)
	require.ErrorIs(t, err, mempool.ErrInternal)
	assert.Empty(t, c.rec.Mapped)
	backing.set("Export", nil)
	_, err = c.Channel(info.ID).MapBlock(l.Grant().Block)
	require.NoError(t, err)
	assert.Len(t, c.rec.Mapped, 1)
}

func TestAChannelThatIsClosedGoesWithItsLastConsumer(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4, Mode: mode}, 8)
			p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
			for range 3 {
				p.send()
			}
			c.done(c.next(), mempool.Fence{})
			require.NoError(t, r.owner.Channel(r.info.ID).Close())
			_, err := r.owner.FindChannel(t.Context(), "frames", 0)
			require.ErrorIs(t, err, mempool.ErrNotFound, "the name is free")
			_, err = p.TryPublish(&shmchannel.Record{Block: 1, Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{1}}})
			require.ErrorIs(t, err, shmchannel.ErrClosed)
			f := c.next()
			_, err = c.Channel(r.info.ID).MapBlock(f.Block)
			require.NoError(t, err, "frames that were published are still taken")
			c.done(f, mempool.Fence{})
			assert.False(t, r.nothingLeft())
			if mode == mempool.WorkQueue {
				c.done(c.next(), mempool.Fence{})
			}
			c.quit() // one frame of the broadcast is left that no consumer has taken
			assert.True(t, r.nothingLeft(), "the producer's session lives, and needs nothing of the service")
			assert.Len(t, p.back(), 3)
			require.ErrorIs(t, p.Channel(r.info.ID).Member(p.member.ID).Leave(), mempool.ErrClosed)
		})
	}
}

func TestADestroyedPoolsChannelLetsConsumersFinish(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4}, 8)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	first, second := p.send(), p.send()
	f := c.next()
	require.NoError(t, r.owner.DestroyPool(r.pool.rec.Info.ID))
	assert.Equal(t, []Wanted{{Pool: r.pool.rec.Info.ID}}, told[Wanted](p.worker))
	_, err := c.try()
	require.ErrorIs(t, err, shmchannel.ErrDestroyed)
	assert.Equal(t, []Lease{second}, p.back(), "the other frame is in hand")
	release(t, second)
	c.done(f, mempool.Fence{})
	assert.Equal(t, []Lease{first}, p.back())
	select {
	case <-r.pool.closed:
		t.Fatal("a buffer is left")
	default:
	}
	release(t, first)
	<-r.pool.closed
	c.quit()
	assert.True(t, r.nothingLeft())
}

func TestAServiceThatClosesLeavesNoFileOfAChannel(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 4}, 8)
	p, c := r.produce(hire(t, r.svc)), r.consume(hire(t, r.svc), MemberSpec{})
	p.send()
	c.next()
	files := slices.Concat(p.member.Export.Files, c.member.Export.Files)
	r.svc.Close()
	for _, f := range files {
		_, err := f.Stat()
		assert.ErrorIs(t, err, os.ErrClosed)
	}
	assert.True(t, r.nothingLeft())
}
