package streams

import (
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file finds out which blocks of producers that leave a channel the channel or its consumers still need.

// Lending is for producers that leave their channels. It says which of these producers' blocks the channels still need.
type Lending []*glance

// glance is the result of one reading of a channel's memory, for some producers of the channel.
type glance struct {
	*shmchannel.Look
	of        *ledger.Channel
	producers []*ledger.Member
	ends      map[*ledger.Member]*shmchannel.Member
}

// Lend adds what the channel needs of some producers that leave it. It reads the channel's memory once for all of them.
func (of Lending) Lend(st *Stream, producers []*ledger.Member) Lending {
	return append(of, st.look(producers))
}

// look reads the memory of the channel, once for all these producers.
func (st *Stream) look(producers []*ledger.Member) *glance {
	g := &glance{of: st.Channel, producers: producers, ends: make(map[*ledger.Member]*shmchannel.Member, len(producers))}
	var ends []*shmchannel.Member
	for _, m := range producers {
		end := new(shmchannel.Member) // without memory, for a producer that has no seat any more
		if st.Members[m.ID] != nil {
			end = st.ends[m.ID].Member
		}
		g.ends[m] = end
		ends = append(ends, end)
	}
	g.Look = st.host.Look(ends...)
	return g
}

// needs says whether the channel needs, or may need, a block that one of these producers may have published.
func (g *glance) needs(b *ledger.Block, producers []*ledger.Member) bool {
	return slices.ContainsFunc(producers, func(m *ledger.Member) bool { return g.Unsure(g.ends[m]) }) || g.names(b, producers)
}

// names says whether the channel certainly needs a block that one of these producers published.
func (g *glance) names(b *ledger.Block, producers []*ledger.Member) bool {
	return slices.ContainsFunc(producers, func(m *ledger.Member) bool { return g.Names(g.ends[m], b.ID) })
}

// Unsure says whether there is a producer for which it could not be read which blocks the channel needs.
func (of Lending) Unsure() bool {
	return slices.ContainsFunc(of, func(g *glance) bool {
		return slices.ContainsFunc(g.producers, func(m *ledger.Member) bool { return g.Unsure(g.ends[m]) })
	})
}

// Needs says whether one of the channels needs, or may need, a block.
func (of Lending) Needs(b *ledger.Block) bool {
	return slices.ContainsFunc(of, func(g *glance) bool { return g.of.Pool == b.Pool && g.needs(b, g.producers) })
}

// Retain is for a write lease that is about to end. Each channel that the session's producers leave retains the lease's buffer. The result is
// true if a channel needs the buffer or may need it. A channel also retains a buffer that it does not need any more, because consumers' work
// on the buffer may still run: Unneeded reads the fences of this work later. If it is not certain that a channel needs the buffer, Retain
// marks the buffer as doubted.
func (of Lending) Retain(l *ledger.Lease) (needed bool) {
	b := l.Buffer
	named := false
	for _, g := range of {
		if l.Write && g.of.Pool == b.Block.Pool {
			g.of.Retain(b, g.producers)
			named = named || g.names(b.Block, g.producers)
		}
	}
	needed = of.Needs(b.Block)
	b.Doubted = needed && !named // Retain has touched the buffer
	return needed
}

// Unneeded returns the buffers that the channel retains, and that neither the channel nor its consumers need any more. It adds to each of their
// blocks the fences of the work that may still use it. Unneeded also returns the buffers that are not doubted any more.
func (st *Stream) Unneeded() (free, certain []*ledger.Buffer) {
	if len(st.Retained) == 0 {
		return nil, nil
	}
	var all []*ledger.Member
	for _, producers := range st.Retained {
		all = append(all, producers...)
	}
	slices.SortFunc(all, func(a, b *ledger.Member) int { return int(a.ID) - int(b.ID) })
	found := st.look(slices.Compact(all))
	for b, producers := range st.Retained {
		if b.Doubted && found.names(b.Block, producers) {
			b.Doubted = false
			st.Touch(b)
			certain = append(certain, b)
		}
		if !found.needs(b.Block, producers) {
			free = append(free, b)
		}
	}
	if len(free) == 0 {
		return nil, certain
	}
	done, ok := st.ConsumersDone() // read after the consumers' holds: a consumer writes its fences before it clears its hold
	if !ok {
		return nil, certain
	}
	for _, b := range free {
		work := done.Union(st.timelines.Outstanding(st.Retained[b][0].Session.Timeline))
		b.Block.SetFences(st.timelines.Pending(work.Union(b.Block.Fences)))
	}
	return free, certain
}

// ConsumersDone returns the fences of the consumers' work on frames, without the fences that are already reached. If a consumer is writing a
// fence at this moment, the result `ok` is false.
func (st *Stream) ConsumersDone() (done ledger.Fences, ok bool) {
	var found []shmchannel.Fence
	at := make(map[mempool.Fence]int) // the index of each fence in done, by timeline and word
	for _, m := range st.MembersOf(ledger.Consumer) {
		own := m.Timeline
		if !m.Entered || own == nil || own.Dead {
			continue
		}
		if found, ok = st.host.Fences(found[:0], st.ends[m.ID].Member); !ok {
			return nil, false
		}
		for _, f := range found {
			one := own.Promise(f.Word, f.Value)
			key := mempool.Fence{Timeline: own.ID, Word: f.Word}
			if i, again := at[key]; again { // another consumer of the same session has a fence of this word
				done[i].Value = max(done[i].Value, one.Value)
			} else if !st.timelines.Over(one) {
				at[key] = len(done)
				done = append(done, one)
			}
		}
	}
	return done, true
}
