package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
)

func init() { children["publisher"] = publishUntilTold }

func publisher(t testing.TB, ch *Channel, bytes uint64) *Publisher {
	t.Helper()
	p, err := ch.Publisher(t.Context(), mempool.Bytes(bytes))
	require.NoError(t, err)
	return p
}

func loan(t testing.TB, p *Publisher) *Lease {
	t.Helper()
	l, err := p.TryLoan(t.Context())
	require.NoError(t, err)
	return l
}

// sendLoan publishes a loan with the content that frameOf makes from n.
func sendLoan(ctx context.Context, p *Publisher, n uint64) error {
	return sendLoanBy(ctx, p.Publish, p, n)
}

func sendLoanBy(ctx context.Context, publish publishing, p *Publisher, n uint64) error {
	l, err := p.Loan(ctx)
	if err != nil {
		return fmt.Errorf("loan: %w", err)
	}
	if err := l.CopyFrom(context.Background(), 0, frameOf(n, int(p.stream.Bytes))); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	_, err = publish(ctx, l, mempool.FrameOptions{Meta: map[string]any{"n": fmt.Sprint(n)}})
	return err
}

// asked returns how many requests the clients of a pair have made so far.
func (s *channelPair) asked() (requests uint32) {
	for _, c := range []*Client{s.producer, s.consumer} {
		requests += c.session.Requests()
	}
	return requests
}

func TestAStreamOfAPublisherAsksTheServiceForNothing(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mode, Capacity: 4})
			from := s.follow(t, mempool.SubscribeOptions{})
			p := publisher(t, s.from, 1<<16)
			require.NoError(t, sendLoan(t.Context(), p, 0))
			f := receive(t, from, 0)
			info := f.Lease.Grant()
			require.NoError(t, f.Release())
			warm, places := s.asked(), make(map[uintptr]struct{})
			for n := range uint64(300) {
				require.NoError(t, sendLoan(t.Context(), p, n+1))
				f := receive(t, from, n+1)
				at, err := f.Lease.Pointer(t.Context())
				require.NoError(t, err)
				places[at] = struct{}{}
				have := f.Lease.Grant()
				require.Equal(t, []any{info.Buffer, info.Block, uint64(1 << 16), mempool.Bytes(1 << 16)}, []any{have.Buffer, have.Block, have.Bytes, have.Tensor})
				require.NoError(t, f.Release())
			}
			assert.Equal(t, warm, s.asked())
			assert.LessOrEqual(t, len(places), 4+stream.ArenaMore+stream.SmallMore)
			assert.Equal(t, 1, s.svc.Stats().Buffers)
			assert.EqualValues(t, 1, s.producer.SessionStats().Allocated)
		})
	}
}

func TestALoanIsALeaseOfItsChunkOnly(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 1})
	p := publisher(t, s.from, 100)
	a, b := loan(t, p), loan(t, p)
	require.NoError(t, a.Fill(t.Context(), 0, 100, 1))
	require.NoError(t, b.Fill(t.Context(), 0, 100, 2))
	require.ErrorIs(t, a.Fill(t.Context(), 0, 101, 3), ErrInvalid)
	mem, err := a.Bytes(t.Context())
	require.NoError(t, err)
	assert.Len(t, mem, 100)
	assert.Equal(t, 100, cap(mem))
	assert.EqualValues(t, 1, mem[99])
	assert.Equal(t, mempool.Bytes(100), a.Tensor())
	assert.True(t, a.Grant().Write)
	assert.Equal(t, 2, s.producer.SessionStats().Leases)
	release(t, a)
	assert.NoError(t, a.Release(false), "again")
	_, err = p.Publish(t.Context(), a, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrReleased)
	assert.ErrorContains(t, err, "take a loan for each frame")
	release(t, b)
	assert.Zero(t, s.producer.SessionStats().Leases)
}

func TestALoanCanOnlyBePublishedByItsPublisher(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 1})
	p, other := publisher(t, s.from, 100), publisher(t, s.from, 100)
	l := loan(t, p)
	require.ErrorIs(t, l.Publish(t.Context(), mempool.Publication{Name: "x"}), ErrInvalid)
	_, err := s.from.Publish(t.Context(), l, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = other.Publish(t.Context(), l, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrInvalid)
	own := allocate(t, s.pool, 100)
	_, err = p.Publish(t.Context(), own, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrInvalid)
	release(t, own)
	large := mempool.Bytes(101)
	_, err = p.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &large})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = p.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"k": "\xff"}})
	require.ErrorIs(t, err, ErrInvalid)
	number, err := p.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err, "no error has ended the loan")
	assert.EqualValues(t, 1, number)
}

func TestAFrameOfALoanMayHaveAnotherTensor(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<10)
	for n := range uint64(20) {
		want := mempool.Tensor{DType: mempool.Float64, Shape: []uint64{3, 4}, ByteOffset: 8 * n}
		l := loan(t, p)
		require.NoError(t, l.CopyFrom(t.Context(), 0, frameOf(n, 1<<10)))
		_, err := p.Publish(t.Context(), l, mempool.FrameOptions{Tensor: &want, Meta: map[string]any{"n": fmt.Sprint(n)}})
		require.NoError(t, err)
		f := receive(t, from, n)
		assert.Equal(t, want, f.Lease.Tensor())
		require.NoError(t, f.Release())
	}
}

func TestChunksComeBackHoweverALoanEnds(t *testing.T) {
	s := pair(t, hostPool("p", 3<<16), mempool.ChannelSpec{Capacity: 1, Full: mempool.Fail})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for n := range uint64(20) {
		release(t, loan(t, p))
		require.NoError(t, loan(t, p).Release(true))
		require.NoError(t, loan(t, p).ReleaseAfter(t.Context(), mempool.CPU))
		_, err := p.Publish(t.Context(), loan(t, p), mempool.FrameOptions{Tensor: &mempool.Tensor{DType: "none"}})
		require.ErrorIs(t, err, ErrInvalid)
		require.NoError(t, p.stream.Loans()[0].Release(session.Unasked, false))
		require.NoError(t, sendLoan(t.Context(), p, n))
		f := receive(t, from, n)
		l := loan(t, p)
		_, err = p.Publish(t.Context(), l, mempool.FrameOptions{})
		require.ErrorIs(t, err, ErrLimit, "the channel is full")
		_, err = p.Publish(cancelled, l, mempool.FrameOptions{})
		require.Error(t, err)
		require.ErrorIs(t, l.Check(t.Context()), ErrReleased, "the cancelled call has ended it")
		require.NoError(t, f.Release())
	}
}

func TestAPoolOfOneChunkMoreThanTheChannelKeepsIsEnough(t *testing.T) {
	const capacity = 3
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			s := pair(t, hostPool("p", (capacity+1)<<16), mempool.ChannelSpec{Mode: mode, Capacity: capacity})
			from := s.follow(t, mempool.SubscribeOptions{})
			p := publisher(t, s.from, 1<<16)
			const frames = 300
			var sender sync.WaitGroup
			sender.Go(func() {
				for n := range uint64(frames) {
					if !assert.NoError(t, sendLoan(context.Background(), p, n)) {
						return
					}
				}
			})
			defer sender.Wait()
			for n := range uint64(frames) {
				require.NoError(t, receive(t, from, n).Release())
			}
		})
	}
}

func TestAFullPublisherSaysWhatHasItsChunks(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	require.NoError(t, sendLoan(t.Context(), p, 1))
	f := receive(t, from, 1)
	l := loan(t, p)
	_, err := p.TryLoan(t.Context())
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, `channel "c": of the 2 chunks of this publisher, 1 are on loan, and 1 have frames that the channel keeps or subscribers hold; publish`)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = p.Loan(short)
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "of the 2 chunks")
	got := make(chan error)
	go func() {
		l, err := p.Loan(context.Background())
		if err == nil {
			err = l.Release(false)
		}
		got <- err
	}()
	eventually(t, p.stream.Waits)
	release(t, l)
	require.NoError(t, <-got, "a released loan serves a call that waits")
	_, err = p.Loan(t.Context()) // waits if the service has got a free arena back meanwhile
	require.NoError(t, err)
	go func() {
		_, err := p.Loan(context.Background())
		got <- err
	}()
	eventually(t, p.stream.Waits)
	require.NoError(t, f.Release())
	require.NoError(t, <-got, "so does a released frame")
}

func TestAPublisherGrowsWhereWorkersHoldItsFrames(t *testing.T) {
	const held = 100
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1000)
	var frames []*Frame
	for n := range uint64(held) {
		require.NoError(t, sendLoan(t.Context(), p, n))
		f := receive(t, from, n)
		require.NoError(t, f.Ack()) // the memory stays in the worker's hands
		frames = append(frames, f)
	}
	assert.GreaterOrEqual(t, p.stream.Chunks(), held)
	assert.Less(t, p.stream.Chunks(), 2*(held+1+stream.ArenaMore+stream.SmallMore))
	for n, f := range frames {
		got, err := verify(f)
		require.NoError(t, err)
		assert.EqualValues(t, n, got)
		require.NoError(t, f.Release())
	}
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	require.NoError(t, sendLoan(t.Context(), p, 1), "it takes an arena again")
	require.NoError(t, receive(t, from, 1).Release())
}

func TestAPublisherUsesItsWholePoolAgainAfterArenasWentBack(t *testing.T) {
	const capacity, bytes = 2, 1 << 19
	for _, chunks := range []int{7, 14, 32} {
		for kept := range chunks {
			t.Run(fmt.Sprintf("chunk %d of %d stays", kept, chunks), func(t *testing.T) {
				s := pair(t, hostPool("p", uint64(chunks)*bytes), mempool.ChannelSpec{Capacity: capacity})
				p := publisher(t, s.from, bytes)
				var loans []*Lease
				for range chunks {
					loans = append(loans, loan(t, p))
				}
				_, err := p.Publish(t.Context(), loans[kept], mempool.FrameOptions{})
				require.NoError(t, err)
				for i, l := range loans {
					if i != kept {
						release(t, l)
					}
				}
				s.producer.streams.GiveBack(s.pool.opened.Info.ID)
				eventually(t, func() bool { return s.svc.Stats().Buffers == 1 })
				for range chunks - 1 {
					loan(t, p)
				}
			})
		}
	}
}

func TestAnIdlePublisherGivesItsMemoryBack(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	for round := range uint64(2) {
		require.NoError(t, sendLoan(t.Context(), p, round))
		f := receive(t, from, round)
		l := loan(t, p)
		require.Equal(t, 1, s.svc.Stats().Buffers)
		require.NoError(t, f.Release())
		release(t, l)
		eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	}
}

func TestAnIdlePublisherKeepsWhatItsChannelKeeps(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<12)
	var loans []*Lease
	for range 3 + stream.ArenaMore + stream.SmallMore + 1 { // one more than the first arena has chunks
		loans = append(loans, loan(t, p))
	}
	require.Equal(t, 2, s.svc.Stats().Buffers)
	for _, l := range loans {
		release(t, l)
	}
	for n := range uint64(10) {
		require.NoError(t, sendLoan(t.Context(), p, n))
		require.NoError(t, receive(t, from, n).Release())
	}
	eventually(t, func() bool { return s.svc.Stats().Buffers == 1 })
	late := s.follow(t, mempool.SubscribeOptions{Oldest: true})
	for n := range uint64(3) {
		require.NoError(t, receive(t, late, 7+n).Release())
	}
	require.NoError(t, s.from.Close(t.Context()))
	for _, c := range []*subscription{from, late} {
		f, err := c.next(t.Context())
		require.NoError(t, err)
		require.Nil(t, f)
		c.Leave()
	}
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	_, err := p.Loan(t.Context())
	if err == nil {
		err = sendLoan(t.Context(), p, 1)
	}
	require.ErrorIs(t, err, ErrClosed)
}

func TestWhoWaitsForMemoryGetsWhatAPublisherDoesNotUse(t *testing.T) {
	s := pair(t, hostPool("p", 4<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 3})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	for who, pool := range map[string]*Pool{"another session": theirs, "the same session": s.pool} {
		t.Run(who, func(t *testing.T) {
			require.NoError(t, sendLoan(t.Context(), p, 1))
			f := receive(t, from, 1)
			got := allocating(t.Context(), pool)
			select {
			case err := <-got:
				t.Fatal("the pool had room: ", err)
			case <-time.After(10 * time.Millisecond):
			}
			require.NoError(t, f.Release())
			require.NoError(t, <-got)
			eventually(t, func() bool { return s.svc.Stats().Leases == 0 }) // the service has heard that the allocation was released
		})
	}
}

func TestAChunkWaitsForTheWorkOfItsReaders(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	require.NoError(t, sendLoan(t.Context(), p, 1))
	f := receive(t, from, 1)
	w := s.work(t)
	busy := w.begin(t, f)
	require.NoError(t, sendLoan(t.Context(), p, 2))
	l := loan(t, p)
	require.Equal(t, []mempool.Fence{busy}, l.Grant().Wait)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.WaitOn(ended, mempool.CPU), context.Canceled)
	require.NoError(t, l.Release(false))
	l = loan(t, p)
	require.Equal(t, []mempool.Fence{busy}, l.Grant().Wait, "it was not written, so the work may still run")
	written, memory := make(chan error), memoryOf(t, l)
	go func() { written <- l.CopyFrom(context.Background(), 0, frameOf(3, 1<<16)) }()
	content := make([]byte, 1<<16)
	require.NoError(t, memory.CopyTo(content, 0))
	assert.Equal(t, frameOf(1, 1<<16), content, "nobody has overwritten it")
	require.NoError(t, w.clock.Reach(busy))
	require.NoError(t, <-written)
	require.NoError(t, receive(t, from, 2).Release())
	_, err := p.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": "3"}})
	require.NoError(t, err)
	require.NoError(t, receive(t, from, 3).Release())
}

func TestALoanPrefersAChunkWhoseReadersAreDone(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<10)
	w := s.work(t)
	require.NoError(t, sendLoan(t.Context(), p, 0))
	busy := w.begin(t, receive(t, from, 0))
	for range 2 + stream.ArenaMore + stream.SmallMore - 1 {
		l := loan(t, p)
		assert.Empty(t, l.Grant().Wait)
		defer l.Release(false)
	}
	l := loan(t, p)
	assert.Equal(t, []mempool.Fence{busy}, l.Grant().Wait)
	require.NoError(t, w.clock.Reach(busy))
	release(t, l)
}

func TestTheMemoryOfAPublisherIsGivenBackWhenTheWorkOfReadersHasEnded(t *testing.T) {
	s := pair(t, hostPool("p", 2<<16), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	w := s.work(t)
	require.NoError(t, sendLoan(t.Context(), p, 0))
	busy := w.begin(t, receive(t, from, 0))
	p.Close()
	theirs, err := s.consumer.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = theirs.TryAllocate(t.Context(), mempool.Bytes(2<<16))
	require.ErrorIs(t, err, ErrLimit)
	require.NoError(t, w.clock.Reach(busy))
	all, err := theirs.Allocate(t.Context(), mempool.Bytes(2<<16))
	require.NoError(t, err)
	release(t, all)
}

func TestAClosedPublisherKeepsItsLoansAndFrames(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 4})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<16)
	require.NoError(t, sendLoan(t.Context(), p, 1))
	l := loan(t, p)
	p.Close()
	p.Close()
	_, err := p.Loan(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	assert.ErrorContains(t, err, `this publisher of channel "c" was closed`)
	_, err = p.Publish(t.Context(), l, mempool.FrameOptions{})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, l.Fill(t.Context(), 0, 1<<16, 1))
	f := receive(t, from, 1)
	release(t, l)
	require.NoError(t, f.Release())
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
	eventually(t, func() bool {
		_, _, publishers := s.producer.streams.Size()
		return publishers == 0
	})
}

func TestAClientClosesWithLoansAndFramesOut(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		svc, path := serve(t, server.Config{})
		owner, producer := dial(t, path), dial(t, path)
		createPool(t, owner, spec)
		pool, err := producer.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		ch := makeChannel(t, producer, pool, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
		theirs, err := owner.TryOpenChannel(t.Context(), "c")
		require.NoError(t, err)
		from, err := theirs.subscribe(t.Context(), mempool.SubscribeOptions{})
		require.NoError(t, err)
		defer from.Leave()
		p, idle := publisher(t, ch, 1<<16), publisher(t, ch, 1<<10)
		release(t, loan(t, idle))
		for n := range uint64(4) {
			require.NoError(t, sendLoan(t.Context(), p, n))
		}
		held := receive(t, from, 0)
		l := loan(t, p)
		require.NoError(t, producer.Close())
		_, err = l.Bytes(t.Context())
		require.ErrorIs(t, err, ErrReleased)
		_, err = p.Loan(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		eventually(t, func() bool { return svc.Stats().Buffers == 1 })
		for n := range uint64(3) {
			require.NoError(t, receive(t, from, n+1).Release())
		}
		n, err := verify(held)
		require.NoError(t, err)
		assert.Zero(t, n)
		require.NoError(t, held.Release())
		awaitReclaimed(t, svc)
		mine, err := owner.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		all, err := mine.Allocate(t.Context(), mempool.Bytes(spec.MaxBytes))
		require.NoError(t, err)
		release(t, all)
	})
}

func TestPublishersAndTheirClientMayCloseAtTheSameTime(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	witness := dial(t, r.path)
	whole := createPool(t, witness, hostPool("p", 1<<22))
	for range 20 {
		c, err := Dial(t.Context(), r.path)
		require.NoError(t, err)
		p, err := c.TryOpenPool(t.Context(), "p")
		require.NoError(t, err)
		var publishers [8]*Publisher
		for i := range publishers {
			ch, err := c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: fmt.Sprint(i), Pool: p.Info().ID, Capacity: 3})
			require.NoError(t, err)
			publishers[i] = publisher(t, ch, 3000)
			release(t, loan(t, publishers[i]))
		}
		var closing sync.WaitGroup
		for _, one := range publishers {
			closing.Go(func() { assert.NoError(t, one.Close()) })
		}
		closing.Go(func() { assert.NoError(t, c.Close()) })
		closing.Wait()
		eventually(t, func() bool {
			_, err = whole.Trim(t.Context(), 0)
			require.NoError(t, err)
			return r.svc.Stats().Pools[0].Reserved == 0 // this process lives on, and has given back everything
		})
	}
}

func TestTheEndOfTheClientOrItsServiceEndsAWaitForALoan(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(s *channelPair, waiting *Publisher) error
		want error
	}{
		"the client is closed":    {func(s *channelPair, _ *Publisher) error { return s.producer.Close() }, ErrClosed},
		"the publisher is closed": {func(_ *channelPair, waiting *Publisher) error { waiting.Close(); return nil }, ErrClosed},
		"the service ends":        {func(s *channelPair, _ *Publisher) error { return s.Close() }, ErrDisconnected},
	} {
		for _, where := range []string{"for a chunk", "at the service"} {
			if what == "the publisher is closed" && where == "at the service" {
				continue
			}
			t.Run(what+", "+where, func(t *testing.T) {
				s := pair(t, hostPool("p", 1<<16), mempool.ChannelSpec{Capacity: 1})
				waiting := publisher(t, s.from, 1<<16)
				loan(t, waiting)
				if where == "at the service" {
					waiting = publisher(t, s.from, 1<<16)
				}
				ended := make(chan error)
				go func() {
					_, err := waiting.Loan(context.Background())
					ended <- err
				}()
				eventually(t, waiting.stream.Waits)
				require.NoError(t, c.end(s, waiting))
				require.ErrorIs(t, <-ended, c.want)
			})
		}
	}
}

func TestSeveralGoroutinesShareAPublisher(t *testing.T) {
	s := pair(t, hostPool("p", 8<<12), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 2})
	from := s.follow(t, mempool.SubscribeOptions{})
	p := publisher(t, s.from, 1<<12)
	const senders, frames = 6, 200
	var all sync.WaitGroup
	for i := range senders {
		all.Go(func() {
			for n := range frames {
				if n%7 == 0 {
					l, err := p.Loan(context.Background())
					if assert.NoError(t, err) {
						assert.NoError(t, l.Release(n%2 == 0))
					}
				}
				if !assert.NoError(t, sendLoan(context.Background(), p, uint64(i*frames+n))) {
					return
				}
			}
		})
	}
	seen := make(map[uint64]struct{})
	for range senders * frames {
		f, err := from.next(t.Context())
		require.NoError(t, err)
		n, err := verify(f)
		require.NoError(t, err)
		require.NotContains(t, seen, n)
		seen[n] = struct{}{}
		require.NoError(t, f.Release())
	}
	all.Wait()
}

func TestPublishersOfOneChannelGetTheirOwnChunksBack(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 1})
	from := s.follow(t, mempool.SubscribeOptions{})
	var ps []*Publisher
	for i := range 3 {
		ps = append(ps, publisher(t, s.from, 1000<<i))
	}
	for n := range uint64(200) {
		require.NoError(t, sendLoan(t.Context(), ps[n%3], n))
		require.NoError(t, receive(t, from, n).Release())
	}
	assert.Equal(t, 3, s.svc.Stats().Buffers)
}

func TestAStreamOfAPublisherGoesOnWhileTheServiceIsStopped(t *testing.T) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		t.Run(string(mode), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.sock")
			service := spawn(t, "service", path, nil)
			require.Equal(t, "serving", service.says())
			producer, consumer := dial(t, path), dial(t, path)
			pool := createPool(t, producer, hostPool("p", 2<<12))
			ch := makeChannel(t, producer, pool, mempool.ChannelSpec{Mode: mode, Capacity: 1, Full: mempool.DropOldest})
			far, err := consumer.TryOpenChannel(t.Context(), "c")
			require.NoError(t, err)
			from, err := far.subscribe(t.Context(), mempool.SubscribeOptions{})
			require.NoError(t, err)
			p := publisher(t, ch, 1<<12)
			var hand []*Frame
			for n := range uint64(2) { // all chunks are in the consumer's hands
				require.NoError(t, sendLoan(t.Context(), p, n))
				hand = append(hand, receive(t, from, n))
			}
			service.stop()
			for n := range uint64(300) {
				sent := make(chan error)
				go func() { sent <- sendLoan(t.Context(), p, n+2) }()
				eventually(t, p.stream.Waits) // it asks the service, which does not answer
				require.NoError(t, hand[0].Release())
				require.NoError(t, <-sent)
				hand = append(hand[1:], receive(t, from, n+2))
			}
			require.NoError(t, service.cmd.Process.Signal(syscall.SIGCONT))
			for _, f := range hand {
				require.NoError(t, f.Release())
			}
			from.Leave()
			p.Close()
			require.NoError(t, ch.Close(t.Context()))
			all, err := pool.Allocate(t.Context(), mempool.Bytes(2<<12))
			require.NoError(t, err, "no chunk is lost")
			require.NoError(t, all.Release(false))
		})
	}
}

// publishUntilTold publishes frames of 1,000 bytes with a publisher: for each line that it reads, as many as the line says, beginning with
// the number 0. After each line, it has one loan that it does not publish.
func publishUntilTold() error {
	ctx := context.Background()
	c, _, ch, err := openStream(ctx)
	if err != nil {
		return err
	}
	p, err := ch.Publisher(ctx, mempool.Bytes(1000))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for n := uint64(0); in.Scan(); {
		var frames int
		if _, err := fmt.Sscan(in.Text(), &frames); err != nil {
			return err
		}
		for range frames {
			if err := sendLoan(ctx, p, n); err != nil {
				return err
			}
			n++
		}
		l, err := p.Loan(ctx)
		if err != nil {
			return err
		}
		if err := l.Fill(ctx, 0, 1000, 0xff); err != nil {
			return err
		}
		fmt.Println("sent")
	}
	return c.Close()
}

func TestFramesOfAKilledPublisherStayWhileTheyAreUsed(t *testing.T) {
	const frames = 6
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
			t.Run(string(mode), func(t *testing.T) {
				svc, path := serve(t, server.Config{})
				c := dial(t, path)
				pool := createPool(t, c, spec)
				ch := makeChannel(t, c, pool, mempool.ChannelSpec{Mode: mode, Capacity: frames})
				from, err := ch.subscribe(t.Context(), mempool.SubscribeOptions{})
				require.NoError(t, err)
				defer from.Leave()
				victim := spawn(t, "publisher", path, nil)
				require.Equal(t, "ready", victim.says())
				victim.tell(fmt.Sprint(frames))
				require.Equal(t, "sent", victim.says())
				var hand []*Frame
				for n := range uint64(frames / 2) {
					hand = append(hand, receive(t, from, n))
				}
				victim.kill()
				eventually(t, func() bool { return svc.Stats().Sessions == 1 })
				_, err = pool.TryAllocate(t.Context(), mempool.Bytes(spec.MaxBytes))
				require.Error(t, err, "the arena is there")
				for n := range uint64(frames / 2) {
					hand = append(hand, receive(t, from, frames/2+n))
				}
				for n, f := range hand {
					assert.Equal(t, 1, svc.Stats().Buffers)
					got, err := verify(f)
					require.NoError(t, err)
					assert.EqualValues(t, n, got)
					require.NoError(t, f.Release())
				}
				if mode == mempool.Broadcast { // the channel keeps the frames for later subscribers
					require.NoError(t, ch.Close(t.Context()))
					_, err = from.next(t.Context())
					require.NoError(t, err)
					from.Leave()
				}
				awaitReclaimed(t, svc)
				all, err := pool.Allocate(t.Context(), mempool.Bytes(spec.MaxBytes))
				require.NoError(t, err)
				release(t, all)
			})
		}
	})
}

func TestFramesOfAKilledWorkerGoToAnotherFromTheSameArena(t *testing.T) {
	s := pair(t, hostPool("p", 1<<22), mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 8})
	p := publisher(t, s.from, 1000)
	for n := range uint64(5) {
		require.NoError(t, sendLoan(t.Context(), p, n))
	}
	victim := spawn(t, "consume", s.path, with("HOLD=1"))
	require.Equal(t, "ready", victim.says())
	require.Equal(t, "got 0 1 0", victim.says())
	victim.tell("")
	require.Equal(t, "got 1 2 0", victim.says())
	victim.kill()
	from := s.follow(t, mempool.SubscribeOptions{})
	seen := make(map[uint64]bool)
	for len(seen) < 4 {
		f, err := from.next(t.Context())
		require.NoError(t, err)
		n, err := verify(f)
		require.NoError(t, err)
		seen[n] = true
		require.NoError(t, f.Release())
	}
	assert.Equal(t, map[uint64]bool{1: true, 2: true, 3: true, 4: true}, seen)
	eventually(t, func() bool { return s.svc.Stats().Buffers == 0 })
}

func TestAPublisherOfWhatNoPoolHasRoomForFailsAtOnce(t *testing.T) {
	s := pair(t, hostPool("p", 1<<20), mempool.ChannelSpec{Capacity: 8})
	for _, bytes := range []uint64{1<<20 + 1, 1 << 62, 1<<63 - 1} {
		p, err := s.from.Publisher(t.Context(), mempool.Bytes(bytes))
		require.NoError(t, err)
		_, err = p.Loan(t.Context())
		require.ErrorIs(t, err, ErrLimit, bytes)
		_, err = p.TryLoan(t.Context())
		require.ErrorIs(t, err, ErrLimit, bytes)
	}
	_, err := s.from.Publisher(t.Context(), mempool.Tensor{DType: "none"})
	require.ErrorIs(t, err, ErrInvalid)
	p := publisher(t, s.from, 0)
	_, err = p.Publish(t.Context(), loan(t, p), mempool.FrameOptions{})
	require.NoError(t, err, "a frame without bytes")
}

func TestTheTracerSeesLoans(t *testing.T) {
	r := &recorder{}
	pool := tracedPool(t, r)
	ch := makeChannel(t, pool.client, pool, mempool.ChannelSpec{Capacity: 1})
	p := publisher(t, ch, 100)
	l := loan(t, p)
	_, err := p.Publish(t.Context(), l, mempool.FrameOptions{})
	require.NoError(t, err)
	release(t, loan(t, p))
	var titles []string
	for _, o := range r.take() {
		require.NoError(t, o.err)
		assert.EqualValues(t, 100, o.Bytes, o.Title())
		titles = append(titles, o.Title())
	}
	assert.Equal(t, []string{"allocate c", "publish c", "allocate c", "release p"}, titles)
	_, found := pool.client.traces.Load(&l.held)
	assert.False(t, found)
	require.NoError(t, errors.Join(ch.Close(t.Context())))
}

func TestAChunkOfAGPUWaitsForTheStreamsOfItsWriterAndItsReaders(t *testing.T) {
	_, path := serve(t, server.Config{})
	producer, consumer := dial(t, path), dial(t, path)
	pool := gpuPool(t, producer)
	ch := makeChannel(t, producer, pool, mempool.ChannelSpec{Mode: mempool.WorkQueue, Capacity: 1})
	theirs, err := consumer.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	from, err := theirs.subscribe(t.Context(), mempool.SubscribeOptions{})
	require.NoError(t, err)
	defer from.Leave()
	p := publisher(t, ch, 1<<20)
	clock, stuck := unreached(t, producer)
	l := loan(t, p)
	stopped(t, l, clock, stuck)
	require.NoError(t, l.CopyFrom(t.Context(), 0, frameOf(1, 1<<20)))
	at := memoryOf(t, l).Pointer()
	_, err = p.Publish(t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"n": "1"}})
	require.NoError(t, err, "nobody waits for the stream")
	f, err := from.next(t.Context())
	require.NoError(t, err)
	require.Len(t, f.Lease.Grant().Wait, 1, "the content is not complete")
	q := queueOf(t, f.Lease)
	require.NoError(t, f.Lease.WaitOn(t.Context(), q))
	require.NoError(t, f.ReleaseAfter(t.Context(), q))
	var loans []*Lease
	for range p.stream.Chunks() {
		loans = append(loans, loan(t, p))
	}
	last := loans[len(loans)-1]
	assert.Equal(t, at, memoryOf(t, last).Pointer(), "the chunk with work is taken last")
	assert.Len(t, last.Grant().Wait, 2, "it waits for its writer and its reader")
	for _, l := range loans[:len(loans)-1] {
		assert.Empty(t, l.Grant().Wait)
	}
	require.NoError(t, clock.Reach(stuck))
	require.NoError(t, last.WaitOn(t.Context(), mempool.CPU))
	for _, l := range loans {
		release(t, l)
	}
}
