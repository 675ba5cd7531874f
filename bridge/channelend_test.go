package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// blocked starts a Publish that waits for room in a channel, and a loop that waits for a frame. published gets the error of the Publish,
// and looped the error of the loop.
func blocked(t *testing.T, producer, consumer *Client, p *Pool) (published, looped chan error) {
	full := makeChannel(t, producer, p, mempool.ChannelSpec{Name: "full", Capacity: 1})
	empty := makeChannel(t, consumer, p, mempool.ChannelSpec{Name: "empty", Capacity: 1})
	slow, err := full.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	t.Cleanup(slow.Leave)
	require.NoError(t, sendFrame(t.Context(), p, full, 1, 8, mempool.FrameOptions{}))
	published, looped = make(chan error), make(chan error)
	go func() { published <- sendFrame(context.Background(), p, full, 2, 8, mempool.FrameOptions{}) }()
	entered := make(chan struct{})
	go func() {
		from, err := empty.subscribe(context.Background(), mempool.SubscribeOptions{})
		close(entered)
		if err == nil {
			from.deliver(context.Background(), false, func(_ *Frame, frameErr error) bool {
				err = frameErr
				return true
			})
		}
		looped <- err
	}()
	<-entered
	return published, looped
}

func TestClosingAClientEndsWhatWaitsInChannels(t *testing.T) {
	_, path := serve(t, server.Config{})
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 1<<20))
	published, looped := blocked(t, c, c, p)
	require.NoError(t, c.Close())
	for _, ended := range []chan error{published, looped} {
		err := <-ended
		assert.ErrorIs(t, err, ErrClosed)
		assert.NotErrorIs(t, err, ErrDisconnected)
	}
}

func TestALostServiceEndsWhatWaitsInChannels(t *testing.T) {
	path := socketPath(t)
	service := spawn(t, "service", path, nil)
	require.Equal(t, "serving", service.says())
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	p := createPool(t, c, hostPool("p", 1<<20))
	published, looped := blocked(t, c, c, p)
	service.kill()
	assert.ErrorIs(t, <-published, ErrDisconnected)
	assert.ErrorIs(t, <-looped, ErrDisconnected)
	ch := &Channel{client: c, stream: c.streams.Channel(mempool.ChannelIdentity{ID: 1, ChannelSpec: mempool.ChannelSpec{Name: "full", Pool: p.Info().ID}})}
	for f, err := range ch.Frames(t.Context(), mempool.SubscribeOptions{}) {
		assert.Nil(t, f)
		assert.ErrorIs(t, err, ErrDisconnected)
	}
	_ = c.Close() // Close may fail, because the connection is gone
}

func TestALostSessionGivesTheFramesOfAQueueBack(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	for n := range uint64(3) {
		s.send(t, n)
	}
	acked, kept, released := receive(t, from, 0), receive(t, from, 1), receive(t, from, 2)
	require.NoError(t, acked.Ack())
	require.NoError(t, released.Release())
	require.NoError(t, s.consumer.session.Conn().Close())
	<-s.consumer.Done()
	again, err := s.from.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer again.Leave()
	require.NoError(t, receive(t, again, 1).Release())
	assert.ErrorIs(t, kept.Ack(), ErrDisconnected)
	n, err := verify(kept)
	require.NoError(t, err, "what is mapped can still be read")
	assert.EqualValues(t, 1, n)
	require.NoError(t, s.from.Close(t.Context()))
	f, err := again.next(t.Context())
	require.NoError(t, err)
	assert.Nil(t, f, "those that were settled do not come again")
	_ = kept.Release()
	_ = acked.Release()
}

func TestFramesInHandOutliveTheLoop(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mode, Capacity: 2, Full: mempool.DropOldest})
			s.send(t, 0)
			var kept *Frame
			for f, err := range s.to.Frames(t.Context(), mempool.SubscribeOptions{ManualAck: true}) {
				require.NoError(t, err)
				kept = f
				break
			}
			for n := range uint64(10) {
				s.send(t, 100+n)
			}
			n, err := verify(kept)
			require.NoError(t, err)
			assert.Zero(t, n)
			require.NoError(t, kept.Release())
			require.NoError(t, s.from.Close(t.Context()))
			left := 0
			for f, err := range s.to.Frames(t.Context(), mempool.SubscribeOptions{}) {
				if mode == mempool.Broadcast {
					require.ErrorIs(t, err, ErrClosed)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, f.Release())
				left++
			}
			assert.Equal(t, map[mempool.ChannelMode]int{mempool.Broadcast: 0, mempool.WorkQueue: 2}[mode], left, "a closed queue keeps its frames")
			all, err := s.pool.Allocate(t.Context(), mempool.Bytes(1<<20))
			require.NoError(t, err)
			require.NoError(t, all.Release(false))
		})
	}
}

func TestASubscriberByNameTakesTheFramesOfAClosedQueueBeforeThoseOfTheOpenOne(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2})
	s.send(t, 0)
	closed := s.from
	require.NoError(t, closed.Close(t.Context()))
	s.from = makeChannel(t, s.producer, s.pool, s.from.Identity().ChannelSpec)
	opened, err := s.consumer.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	require.Equal(t, s.from.Identity().ID, opened.Identity().ID)
	s.send(t, 1)
	require.NoError(t, opened.Close(t.Context()))
	for _, from := range []*Channel{closed, s.from} {
		sub, err := s.consumer.TrySubscribe(t.Context(), "c", SubscribeOptions{})
		require.NoError(t, err)
		require.Equal(t, from.Identity(), sub.Channel().Identity())
		n := 0
		for f, err := range sub.Frames(t.Context()) {
			require.NoError(t, err)
			require.NoError(t, f.Release())
			n++
		}
		require.Equal(t, 1, n)
		for _, err := range sub.Frames(t.Context()) {
			require.ErrorIs(t, err, ErrClosed, "it has ended")
		}
		sub.Close()
	}
	_, err = s.consumer.TrySubscribe(t.Context(), "c", SubscribeOptions{})
	require.ErrorIs(t, err, ErrNotFound)
}

func TestALoopOverAChannelThatEndsWithItsContext(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 2})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.send(t, 0)
	frames := 0
	var last error
	for f, err := range s.to.Frames(ctx, mempool.SubscribeOptions{}) {
		if last = err; err == nil {
			require.NoError(t, f.Release())
			frames++
			cancel()
		}
	}
	assert.Equal(t, 1, frames)
	assert.ErrorIs(t, last, context.Canceled)
	for n := range uint64(10) {
		s.send(t, n) // the consumer that has left does not block the producer
	}
}

func TestFramesThatContradictThemselvesAreSkippedAndReported(t *testing.T) {
	for _, mode := range []string{"broadcast", "queue"} {
		t.Run(mode, func(t *testing.T) {
			r := start(t, server.Config{}, unhurried)
			liar := sharing(t, r.path)
			pool, channel := liar.makeStream(1<<20, wire.MakeChannel{Mode: mode, Capacity: 16})
			c := dial(t, r.path)
			ch, err := c.TryOpenChannel(t.Context(), "c")
			require.NoError(t, err)
			from, err := ch.subscribe(t.Context(), mempool.SubscribeOptions{Oldest: true})
			require.NoError(t, err)
			defer from.Leave()
			p := liar.produce(pool, channel)
			good := liar.goodRecord(p)
			blockBytes := p.leases[good.Block].BlockBytes
			lies := map[string]func(*shmchannel.Record){
				"a block that the pool has not": func(r *shmchannel.Record) { r.Block = 1 << 40 },
				"more bytes than the block":     func(r *shmchannel.Record) { r.Bytes = 1 << 50 },
				"a tensor beyond the buffer": func(r *shmchannel.Record) {
					r.Description = &shmchannel.Description{DType: "float64", Shape: []uint64{1 << 60}}
				},
				"a base beyond the block": func(r *shmchannel.Record) {
					r.Description = &shmchannel.Description{Base: 1<<63 - 1, DType: "uint8", Shape: []uint64{100}}
				},
				"memory that begins in the block and ends behind it": func(r *shmchannel.Record) {
					r.Description = &shmchannel.Description{Base: blockBytes - 99, DType: "uint8", Shape: []uint64{100}}
				},
				"a tensor within the block and beyond the frame's memory": func(r *shmchannel.Record) {
					r.Description = &shmchannel.Description{Base: 8, DType: "uint8", Shape: []uint64{101}}
				},
				"no such type": func(r *shmchannel.Record) { r.Description = &shmchannel.Description{DType: "float63"} },
				"strides before the start": func(r *shmchannel.Record) {
					r.Description = &shmchannel.Description{DType: "uint8", Shape: []uint64{2}, Strides: []int64{-1}}
				},
			}
			number := uint64(0)
			for what, lie := range lies {
				record := good
				lie(&record)
				p.publishRecord(&record)
				p.publishRecord(&good)
				number++
				f, err := from.next(t.Context())
				require.ErrorIs(t, err, ErrFrameCorrupt, what)
				require.NotNil(t, f)
				assert.Equal(t, number, f.Seq)
				assert.Nil(t, f.Lease)
				assert.NoError(t, f.Release())
				number++
				f, err = from.next(t.Context())
				require.NoError(t, err, what)
				assert.Equal(t, number, f.Seq)
				b := make([]byte, 100)
				require.NoError(t, f.Lease.CopyTo(context.Background(), b, 0))
				assert.Equal(t, bytes.Repeat([]byte{0}, 100), b)
				require.NoError(t, f.Release())
			}
			r.log.Await(t, "found a frame that contradicts itself")
			assert.Zero(t, producerLeases(t, c))
		})
	}
}

func TestTheLeaseOfAFrameHasOnlyTheFramesPartOfItsBlock(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	owner := sharing(t, r.path)
	pool, channel := owner.makeStream(1<<20, wire.MakeChannel{Capacity: 16})
	c := dial(t, r.path)
	ch, err := c.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := ch.subscribe(t.Context(), mempool.SubscribeOptions{Oldest: true})
	require.NoError(t, err)
	defer from.Leave()
	p := owner.produce(pool, channel)
	arena := p.alloc(4 * 512)
	memory := owner.memory[p.at[arena.Block]:]
	var frames []*Frame
	for slot := range uint64(4) {
		copy(memory[slot*512:], bytes.Repeat([]byte{byte(slot + 1)}, 512))
		p.publishRecord(&shmchannel.Record{Block: arena.Block, Buffer: arena.Buffer, Bytes: 100,
			Description: &shmchannel.Description{Base: 512 * slot, Offset: 4, DType: "uint8", Shape: []uint64{96}}})
		f, err := from.next(t.Context())
		require.NoError(t, err)
		frames = append(frames, f)
	}
	first, err := frames[0].Lease.Pointer(t.Context())
	require.NoError(t, err)
	for slot, f := range frames {
		l := f.Lease
		want := bytes.Repeat([]byte{byte(slot + 1)}, 100)
		info := l.Grant()
		assert.Equal(t, []uint64{arena.Block, arena.Buffer, 100, 4}, []uint64{info.Block, info.Buffer, info.Bytes, info.Tensor.ByteOffset})
		b, err := l.Bytes(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, b)
		assert.Equal(t, 100, cap(b))
		pointer, err := l.Pointer(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 512*slot, pointer-first)
		got := make([]byte, 60)
		require.NoError(t, l.CopyTo(t.Context(), got, 40))
		assert.Equal(t, want[:60], got)
		require.ErrorIs(t, l.CopyTo(t.Context(), got, 41), ErrInvalid, "the next frame's memory is not this frame's")
		require.NoError(t, f.Release())
	}
}

func TestAFrameThatNamesABlockOfAnotherPoolIsSkippedAndReported(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	liar := sharing(t, r.path)
	pool, channel := liar.makeStream(1<<20, wire.MakeChannel{Capacity: 4})
	c := dial(t, r.path)
	mine := allocate(t, createPool(t, c, hostPool("other", 1<<20)), 4096)
	require.NoError(t, mine.CopyFrom(context.Background(), 0, []byte("secret")))
	ch, err := c.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := ch.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	p := liar.produce(pool, channel)
	good := liar.goodRecord(p)
	bad := good
	bad.Block = mine.Grant().Block
	p.publishRecord(&bad)
	p.publishRecord(&good)
	f, err := from.next(t.Context())
	require.ErrorIs(t, err, ErrFrameCorrupt)
	require.ErrorIs(t, err, ErrContentFailed)
	assert.Nil(t, f.Lease)
	r.log.Await(t, "found a frame that contradicts itself")
	f, err = from.next(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Release())
	require.NoError(t, mine.Release(false))
}

func TestAProducerThatClosesWhileAConsumerTakesAFrameSaysWhatItUnmapped(t *testing.T) {
	for what, taking := range map[string]time.Duration{"soon": 10 * time.Millisecond, "for long": 0} {
		t.Run(what, func(t *testing.T) {
			r := start(t, server.Config{}, unhurried)
			c, other := dial(t, r.path), dial(t, r.path)
			p := createPool(t, c, hostPool("p", 2<<16))
			ch := makeChannel(t, c, p, mempool.ChannelSpec{Capacity: 2})
			theirs, err := other.TryOpenPool(t.Context(), "p")
			require.NoError(t, err)
			consumer := sharing(t, r.path)
			_, channel := consumer.findStream()
			s := consumer.take(&wire.Join{Channel: channel, Role: "consumer", Full: "drop-oldest"})
			mem, err := unix.Mmap(int(s.config.Own.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			defer unix.Munmap(mem)
			consumer.get(&wire.Enter{Channel: channel, Member: s.Member}, &wire.EmptyReply{})
			sent, free := allocate(t, p, 1<<16), allocate(t, p, 1<<16)
			require.NoError(t, free.Release(false))
			_, err = ch.Publish(t.Context(), sent, mempool.FrameOptions{})
			require.NoError(t, err)
			word := func(at int) *uint64 { return (*uint64)(unsafe.Pointer(&mem[8*at])) }
			atomic.StoreUint64(word(2), 1)
			atomic.StoreUint64(word(512), 1) // the consumer holds frame 1, and has not stored the frame's block yet
			if taking > 0 {
				defer time.AfterFunc(taking, func() { atomic.StoreUint64(word(513), sent.Grant().Block) }).Stop()
			}
			require.NoError(t, c.Close())
			given, err := theirs.Trim(t.Context(), 0)
			require.NoError(t, err)
			assert.EqualValues(t, 1<<16, given, "the client, whose process lives on, has unmapped it")
		})
	}
}

// goodRecord returns a valid record for a new buffer of 100 bytes.
func (p *partner) goodRecord(s *source) shmchannel.Record {
	l := s.alloc(100)
	return shmchannel.Record{Block: l.Block, Buffer: l.Buffer, Bytes: l.Bytes, Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{100}}}
}

// publishRecord publishes a record without a check of the record.
func (s *source) publishRecord(r *shmchannel.Record) {
	s.p.Helper()
	s.meet()
	_, err := s.Publish(context.Background(), r)
	require.NoError(s.p, err)
}

func TestATimelineIsKeptWhileALeaseOfWhichTheServiceDoesNotKnowWaitsForIt(t *testing.T) {
	_, path := serve(t, server.Config{})
	owner, c := dial(t, path), dial(t, path)
	p := createPool(t, owner, hostPool("p", 1<<20))
	ch := makeChannel(t, owner, p, mempool.ChannelSpec{Capacity: 1})
	theirs, err := c.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := theirs.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	clock, err := owner.Clock(t.Context())
	require.NoError(t, err)
	word, err := clock.Word(t.Context())
	require.NoError(t, err)
	var frames []*Frame
	for range 2 {
		ready := clock.Next(word)
		_, err = ch.Publish(t.Context(), allocate(t, p, 8), mempool.FrameOptions{Completion: mempool.Completion{Ready: &ready}})
		require.NoError(t, err)
		f, err := from.next(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.Ack())
		frames = append(frames, f)
		if len(frames) == 2 {
			require.NoError(t, clock.Reach(ready))
		}
	}
	id := clock.Timeline()
	forgotten := func() bool {
		page, err := c.session.Timelines.Find(id)
		require.NoError(t, err)
		return page == nil
	}
	c.session.Timelines.Forget([]uint64{id})
	for _, f := range frames {
		assert.False(t, forgotten())
		require.NoError(t, f.Lease.WaitOn(t.Context(), mempool.CPU))
		require.NoError(t, f.Release())
	}
	assert.True(t, forgotten())
}

func init() { children["leave work"] = leaveWork }

// leaveWork releases the first frame of the channel, although its work on the frame has not ended. The work never ends.
func leaveWork() error {
	ctx := context.Background()
	c, _, ch, err := openStream(ctx)
	if err != nil {
		return err
	}
	clock, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	word, err := clock.Word(ctx)
	if err != nil {
		return err
	}
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
		if err != nil {
			return err
		}
		if err := f.Lease.held.EndLocked(false, clock.Next(word)); err != nil {
			return err
		}
		fmt.Println("released", f.Seq)
	}
	return nil
}

func TestWorkOfAKilledConsumerIsNotWaitedFor(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Capacity: 1})
	victim := spawn(t, "leave work", s.path, nil)
	p := publisher(t, s.from, 1<<16)
	require.NoError(t, sendLoan(t.Context(), p, 1))
	require.Equal(t, "released 1", victim.says())
	require.NoError(t, sendLoan(t.Context(), p, 2))
	require.Equal(t, "released 2", victim.says())
	l := loan(t, p)
	require.Len(t, l.Grant().Wait, 1)
	written := make(chan error)
	go func() { written <- l.CopyFrom(context.Background(), 0, []byte("next")) }()
	victim.kill()
	require.NoError(t, <-written)
	require.NoError(t, l.Release(false))
	require.NoError(t, s.from.Close(t.Context()))
	all, err := s.pool.Allocate(t.Context(), mempool.Bytes(2<<16))
	require.NoError(t, err)
	require.NoError(t, all.Release(false))
}

func TestAChannelThatContradictsItselfEndsTheLoop(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	liar := sharing(t, r.path)
	pool, channel := liar.makeStream(1<<20, wire.MakeChannel{Capacity: 4})
	c := dial(t, r.path)
	ch, err := c.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := ch.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	p := liar.produce(pool, channel)
	mem, err := unix.Mmap(int(p.config.Sequencer.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	binary.LittleEndian.PutUint64(mem, 1000<<16|binary.LittleEndian.Uint64(mem)&1023) // a tail whose number has no entry
	f, err := from.next(t.Context())
	assert.Nil(t, f)
	assert.ErrorIs(t, err, ErrProtocol)
}
