package service

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// troupe is a channel whose members join and leave at random. Producers may share a session.
type troupe struct {
	*channelRig
	dice    *rand.Rand
	sources []*player
	sinks   []*viewer
	ended   []func() // the ends of processes whose sessions have ended
	work    []job    // jobs that are not done
}

// player is a producer, with the leases whose blocks its consumers have released.
type player struct {
	*source
	back []shmchannel.Returned
}

// viewer is a consumer with the frames that it holds.
type viewer struct {
	*sink
	hand  []*shmchannel.Frame
	said  bool // the consumer has left
	alive bool // the consumer's process runs
}

// job is the work of a consumer on the block of a frame.
type job struct {
	of    *viewer
	block uint64
	fence mempool.Fence
}

func (r *troupe) pick(n int) int { return r.dice.IntN(n) }

// step makes a random member do a random operation.
func (r *troupe) step() {
	switch n := r.pick(20); {
	case n == 0 && len(r.sources) < 4:
		var w *worker
		if len(r.sources) > 0 && r.pick(2) == 0 {
			w = r.sources[0].worker
		} else {
			w = hire(r, r.svc)
		}
		r.sources = append(r.sources, &player{source: r.produce(w)})
	case n == 1 && len(r.sinks) < 4:
		spec := MemberSpec{Oldest: r.pick(2) == 0}
		if r.info.Mode == mempool.Broadcast {
			spec.Full = []mempool.FullPolicy{mempool.Block, mempool.Fail, mempool.DropOldest, mempool.Latest}[r.pick(4)]
		}
		r.sinks = append(r.sinks, &viewer{sink: r.consume(hire(r, r.svc), spec), alive: true})
	case n == 2 && len(r.sources) > 0:
		r.end(r.sources[r.pick(len(r.sources))].worker)
	case n == 3 && len(r.sinks) > 0:
		i := r.pick(len(r.sinks))
		v := r.sinks[i]
		if v.isOver() {
			return
		}
		gone, _ := v.end()
		r.ended = append(r.ended, func() {
			v.alive, v.hand = false, nil
			gone()
		})
	case n == 4 && len(r.ended) > 0:
		i := r.pick(len(r.ended))
		r.ended[i]()
		r.ended = append(r.ended[:i], r.ended[i+1:]...)
	case n == 5 && len(r.sinks) > 0:
		if v := r.sinks[r.pick(len(r.sinks))]; !v.said && !v.isOver() {
			v.quit()
			v.said = true
		}
	case n == 6 && len(r.sources) > 0:
		w := r.sources[r.pick(len(r.sources))].worker
		for _, a := range r.sources {
			if a.worker != w {
				continue
			}
			if err := w.Channel(r.info.ID).Member(a.member.ID).Leave(); err != nil {
				require.ErrorIs(r, err, mempool.ErrBusy)
			}
		}
		r.end(w) // the session may have leases on blocks that consumers have released
	case n == 7:
		r.reach()
	case n < 12 && len(r.sources) > 0:
		r.publishSome(r.sources[r.pick(len(r.sources))])
	case n < 16 && len(r.sinks) > 0:
		r.takeSome(r.sinks[r.pick(len(r.sinks))])
	case len(r.sinks) > 0:
		r.releaseSome(r.sinks[r.pick(len(r.sinks))])
	}
}

// end ends a session that has producers.
func (r *troupe) end(w *worker) {
	gone, _ := w.end()
	r.ended = append(r.ended, gone)
	r.sources = slices.DeleteFunc(r.sources, func(a *player) bool { return a.worker == w })
}

// isOver says whether the consumer's session has ended.
func (v *viewer) isOver() bool {
	v.svc.mu.Lock()
	defer v.svc.mu.Unlock()
	return v.rec.Ended
}

// reach completes the oldest job.
func (r *troupe) reach() {
	if len(r.work) == 0 {
		return
	}
	j := r.work[0] // all fences of a worker have the same word, so they are reached in order
	r.work = r.work[1:]
	if j.of.alive {
		j.of.reach(j.fence)
	}
}

// pending returns the jobs on a block that are not done.
func (r *troupe) pending(block uint64) (jobs []job) {
	for _, j := range r.work {
		if j.block == block && j.of.alive {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

func (r *troupe) publishSome(a *player) {
	r.Helper()
	a.meet()
	back, err := a.Reclaim()
	require.NoError(r, err)
	for _, b := range back {
		b.Fences = nil // the slice belongs to the producer, and the test already knows the jobs
		a.back = append(a.back, b)
	}
	var l Lease
	for i, b := range a.back {
		if len(r.pending(b.Block)) > 0 {
			continue
		}
		a.back = append(a.back[:i], a.back[i+1:]...)
		if l = a.leases[b.Block]; r.pick(2) == 0 {
			release(r, l)
			l = Lease{}
		}
		break
	}
	if l.rec == nil {
		l, err = a.allocate(r.Context(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
		if errors.Is(err, mempool.ErrLimit) {
			return
		}
		require.NoError(r, err)
		block := l.Grant().Block
		a.leases[block] = l
		for _, j := range r.pending(block) {
			assert.Condition(r, func() bool {
				for _, w := range l.Grant().Wait {
					if w.Timeline == j.fence.Timeline && w.Word == j.fence.Word && w.Value >= j.fence.Value {
						return true
					}
				}
				return false
			}, "block %d is used again, and nobody waits for the work of %v on it", block, j.of)
		}
	}
	info := l.Grant()
	_, err = a.TryPublish(&shmchannel.Record{Block: info.Block, Buffer: info.Buffer, Bytes: info.Bytes,
		Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{10}}})
	if errors.Is(err, shmchannel.ErrFull) {
		release(r, l)
		return
	}
	require.NoError(r, err)
}

func (r *troupe) takeSome(v *viewer) {
	r.Helper()
	f, err := v.try()
	if errors.Is(err, shmchannel.ErrLeft) {
		return
	}
	require.NoError(r, err)
	if f != nil {
		v.hand = append(v.hand, f)
	}
}

func (r *troupe) releaseSome(v *viewer) {
	r.Helper()
	if len(v.hand) == 0 || !v.alive {
		return
	}
	f := v.hand[0]
	v.hand = v.hand[1:]
	var fence mempool.Fence
	if r.pick(2) == 0 {
		fence = v.fence()
		r.work = append(r.work, job{v, f.Block, fence})
	}
	v.done(f, fence)
}

// check asserts that each frame that a consumer holds still has its buffer.
func (r *troupe) check() {
	r.Helper()
	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	for _, v := range r.sinks {
		for _, f := range v.hand {
			b := r.svc.ledger.Buffers.Get(f.Buffer)
			require.NotNil(r, b, "frame %d is in the hands of %v", f.Number, v)
			require.Equal(r, f.Block, b.Block.ID)
		}
	}
}

func TestMembersThatComeAndGoLoseNoFrameThatIsInHand(t *testing.T) {
	for seed := range seeds(60) {
		dice := rand.New(rand.NewPCG(seed, 3))
		spec := mempool.ChannelSpec{Capacity: 1 + dice.IntN(4), Mode: []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue}[seed%2]}
		if spec.Mode == mempool.WorkQueue {
			spec.Full = []mempool.FullPolicy{mempool.Block, mempool.DropOldest}[dice.IntN(2)]
		}
		r := &troupe{channelRig: newChannelRig(t, spec, 12), dice: dice}
		for range 300 {
			r.step()
			r.check()
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		checkBooks(t, r.svc)
		checkFile(t, r.svc)
		for _, gone := range r.ended {
			gone()
		}
		for len(r.sources) > 0 {
			w := r.sources[0].worker
			r.end(w)
			r.ended[len(r.ended)-1]()
		}
		for _, v := range r.sinks {
			v.die()
		}
		require.NoError(t, r.owner.Channel(r.info.ID).Close())
		if !r.nothingLeft() { // a closed queue waits for a consumer of its frames
			require.Equal(t, mempool.WorkQueue, spec.Mode)
			v := r.consume(hire(t, r.svc), MemberSpec{})
			f, err := v.try()
			for ; err == nil; f, err = v.try() {
				v.done(f, mempool.Fence{})
			}
			require.ErrorIs(t, err, shmchannel.ErrEnded)
			v.quit()
			gone, _ := v.end()
			gone()
		}
		assert.True(t, r.nothingLeft())
		r.awaitStands(0, 0)
		checkBooks(t, r.svc)
		assert.Empty(t, r.svc.ledger.Timelines)
	}
}
