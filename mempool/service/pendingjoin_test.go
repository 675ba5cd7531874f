package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// pendingRig is a channelRig without a channel, whose consumers wait for the channel "frames".
type pendingRig struct {
	*channelRig
	spec mempool.ChannelSpec
}

func newPendingRig(t *testing.T, spec mempool.ChannelSpec) *pendingRig {
	t.Helper()
	svc := newService(t)
	onlyWhoWaitsIsPending(t, svc)
	owner := open(t, svc)
	p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 16 * 4096})
	spec.Name, spec.Pool = "frames", p.rec.Info.ID
	return &pendingRig{&channelRig{TB: t, svc: svc, owner: owner, pool: p}, spec}
}

// onlyWhoWaitsIsPending checks, whenever the service releases its lock, that a new channel would give places only to requests that wait.
func onlyWhoWaitsIsPending(t *testing.T, svc *Service) {
	svc.mu.Lock()
	defer svc.mu.Unlock()
	records := svc.mu.check
	svc.mu.check = func() string {
		pending := 0
		for _, named := range svc.channels.pending {
			pending += len(named)
		}
		assert.LessOrEqual(t, pending, svc.waiting[forChannel], "a request that has its result is pending")
		return records()
	}
}

// pends is a consumer that waits for its channel.
type pends struct {
	*worker
	rig    *pendingRig
	cancel context.CancelFunc
	joined chan Joined
	failed chan error
}

// wait returns when the consumer waits.
func (r *pendingRig) wait(w *worker, spec MemberSpec) *pends {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	p := &pends{worker: w, rig: r, cancel: cancel, joined: make(chan Joined, 1), failed: make(chan error, 1)}
	spec.Role = Consumer
	go func() {
		m, err := w.JoinChannel(ctx, "frames", spec, time.Hour)
		if err != nil {
			p.failed <- err
			return
		}
		p.joined <- m
	}()
	synctest.Wait()
	return p
}

// make makes the channel, and returns a producer that has entered.
func (r *pendingRig) make() *source {
	r.Helper()
	var err error
	r.info, err = r.owner.MakeChannel(r.spec)
	require.NoError(r, err)
	return r.produce(hire(r, r.svc))
}

func (s *source) try() error {
	s.meet()
	l := s.alloc().Grant()
	_, err := s.TryPublish(&shmchannel.Record{Block: l.Block, Buffer: l.Buffer, Bytes: l.Bytes, Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{10}}})
	return err
}

func TestConsumersThatWaitForTheirChannelGetItsFramesFromTheFirst(t *testing.T) {
	for _, full := range []mempool.FullPolicy{mempool.Block, mempool.Fail} {
		t.Run(string(full), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2, Full: full})
				first, second := r.wait(hire(t, r.svc), MemberSpec{}), r.wait(hire(t, r.svc), MemberSpec{})
				p := r.make()
				require.ErrorIs(t, p.try(), shmchannel.ErrUnknownMember)
				a := r.seated(first.worker, <-first.joined)
				require.ErrorIs(t, p.try(), shmchannel.ErrUnknownMember, "the second has not entered")
				b := r.seated(second.worker, <-second.joined)
				for n := uint64(1); n <= 5; n++ {
					if n > 2 {
						require.ErrorIs(t, p.try(), shmchannel.ErrFull)
						for _, c := range []*sink{a, b} {
							f := c.next()
							require.Equal(t, n-2, f.Number)
							require.Zero(t, f.Missed)
							c.done(f, mempool.Fence{})
						}
						p.back()
					}
					p.send()
				}
				a.quit()
				b.quit()
			})
		})
	}
}

func TestProducersDoNotWaitForAConsumerThatDoesNotEnter(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *pends){
		"it leaves": func(t *testing.T, p *pends) {
			m := <-p.joined
			require.NoError(t, p.Channel(m.Channel.ID).Member(m.ID).Leave())
		},
		"it is killed": func(_ *testing.T, p *pends) {
			p.End(mempool.SessionLost, "", make(chan struct{})) // its process lives
		},
		"it is stopped": func(t *testing.T, p *pends) {
			m := <-p.joined
			time.Sleep(2 * usualPatience)
			synctest.Wait()
			_, err := p.Channel(m.Channel.ID).Member(m.ID).Enter()
			require.ErrorIs(t, err, mempool.ErrClosed)
			e := one(t, p.svc, mempool.SubscriberSlow)
			assert.Equal(t, []any{"frames", p.ID()}, []any{e.Channel, e.Session})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2})
				w := r.wait(hire(t, r.svc), MemberSpec{})
				p := r.make()
				require.ErrorIs(t, p.try(), shmchannel.ErrUnknownMember)
				end(t, w)
				came := told[MemberCame](p.worker)
				require.NotEmpty(t, came, "a client that waits for the file of a consumer looks again")
				assert.Nil(t, came[len(came)-1].File)
				for range 5 {
					p.send()
					p.back()
				}
			})
		})
	}
}

func TestAConsumerThatNoLongerWaitsGetsNoPlace(t *testing.T) {
	for name, end := range map[string]func(p *pends){
		"cancelled": func(p *pends) { p.cancel() },
		"killed":    func(p *pends) { p.End(mempool.SessionLost, "", nil) },
		"late":      func(*pends) { time.Sleep(2 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2})
				w := r.wait(hire(t, r.svc), MemberSpec{})
				end(w)
				require.Error(t, <-w.failed)
				synctest.Wait()
				require.Empty(t, r.svc.channels.pending)
				p := r.make()
				for range 5 {
					p.send()
					p.back()
				}
			})
		})
	}
}

func TestAConsumerThatDoesNotWaitForItsChannelGetsNoPlace(t *testing.T) {
	r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2})
	w := hire(t, r.svc)
	m, err := w.JoinChannel(t.Context(), "frames", MemberSpec{Role: Consumer}, 0)
	require.ErrorIs(t, err, mempool.ErrNotFound)
	require.Zero(t, m)
	p := r.make()
	for range 5 {
		p.send()
		p.back()
	}
}

func TestAChannelThatIsClosedAtOnceEndsForWhoWaitedForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2})
		w := r.wait(hire(t, r.svc), MemberSpec{})
		r.make()
		old := r.info
		require.NoError(t, r.owner.Channel(old.ID).Close())
		p := r.make() // another channel of this name
		p.send()
		m := <-w.joined
		require.Equal(t, old, m.Channel)
		c := r.seated(w.worker, m)
		_, err := c.try()
		require.ErrorIs(t, err, shmchannel.ErrEnded)
		c.quit()
		_, err = w.Channel(old.ID).Join(MemberSpec{Role: Consumer})
		require.ErrorIs(t, err, mempool.ErrClosed)
	})
}

func TestAConsumerForWhichProducersDoNotWaitBeginsWithTheOldestFrame(t *testing.T) {
	for name, spec := range map[string]mempool.ChannelSpec{
		"drops": {Capacity: 4, Full: mempool.DropOldest}, "queue": {Capacity: 4, Mode: mempool.WorkQueue},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPendingRig(t, spec)
				w := r.wait(hire(t, r.svc), MemberSpec{})
				p := r.make()
				p.send()
				p.send()
				c := r.seated(w.worker, <-w.joined)
				for n := range uint64(2) {
					f := c.next()
					assert.Equal(t, n+1, f.Number)
					c.done(f, mempool.Fence{})
				}
				c.quit()
			})
		})
	}
}

func TestAStrangerWaitsForAHiddenChannelAsForNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPendingRig(t, mempool.ChannelSpec{Capacity: 2})
		session, err := r.svc.OpenSession(mempool.Peer{UID: 4711}, "", func(Notice) {})
		require.NoError(t, err)
		w := r.wait(&worker{Session: session}, MemberSpec{})
		p := r.make()
		for range 5 {
			p.send()
			p.back()
		}
		time.Sleep(2 * time.Hour)
		hidden := <-w.failed
		require.NoError(t, r.owner.Channel(r.info.ID).Close())
		_, absent := session.JoinChannel(t.Context(), "frames", MemberSpec{Role: Consumer}, time.Hour)
		require.ErrorIs(t, hidden, mempool.ErrTimeout)
		assert.Equal(t, absent.Error(), hidden.Error())
	})
}

func TestOnlyAConsumerJoinsByName(t *testing.T) {
	r := newChannelRig(t, mempool.ChannelSpec{Capacity: 2}, 4)
	for _, spec := range []MemberSpec{{Role: Producer}, {}, {Role: Consumer, Full: "panic"}} {
		_, err := r.owner.JoinChannel(t.Context(), "frames", spec, 0)
		require.ErrorIs(t, err, mempool.ErrInvalid)
	}
	_, err := r.owner.JoinChannel(t.Context(), "", MemberSpec{Role: Consumer}, 0)
	require.ErrorIs(t, err, mempool.ErrInvalid)
	_, err = r.owner.JoinChannel(t.Context(), "none", MemberSpec{Role: Consumer}, 0)
	require.ErrorIs(t, err, mempool.ErrNotFound)
}
