package service

import (
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file handles blocks that producers have published as frames in channels. Consumers map these blocks. If a producer leaves a channel,
// the service keeps the producer's blocks that the channel or its consumers still need.

// MappedBlock is what a consumer needs to map a block.
type MappedBlock struct {
	// Generation says how many buffers have used the block so far, including the present one. Bytes is the block's size.
	Generation, Bytes uint64
	// Export is the export of the block. The service closes the files of the export, so the caller must not close them.
	Export mempool.Export
}

// MapBlock returns what a session needs to map a block. The session has a consumer in the channel, and this consumer has found the block's
// id in a frame. Until the session calls [Session.Dropped], the service treats the block as mapped by the session.
//
// Errors: [mempool.ErrNotFound] if no buffer of the pool uses the block, [mempool.ErrDenied] if the session has no consumer in the channel,
// [mempool.ErrLimit], [mempool.ErrClosed]; the driver's errors.
func (s *Session) MapBlock(channel, id uint64) (MappedBlock, error) {
	b, memory, info, err := s.mapBlock(channel, id)
	if err != nil {
		return MappedBlock{}, err
	}
	if info.Export, err = memory.exportOnce(s.svc.journal); err == nil {
		return info, nil
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if s.rec.Mapped[b.ID] == b {
		s.unmap(b)
	}
	return MappedBlock{}, err
}

// mapBlock notes that the session maps a block, so that the block is not freed.
func (s *Session) mapBlock(channel, id uint64) (*ledger.Block, *blockMemory, MappedBlock, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.anyChannel(channel)
	if err != nil {
		return nil, nil, MappedBlock{}, err
	}
	if !ch.consumedBy(s) {
		return nil, nil, MappedBlock{}, situation.Of(mempool.ErrDenied, "session %d is no consumer of channel %q", s.rec.ID, ch.info.Name)
	}
	b := ch.pool.lent(id)
	if b == nil {
		return nil, nil, MappedBlock{}, situation.Of(mempool.ErrNotFound, "no buffer of pool %q uses block %d", ch.pool.rec.Info.Name, id)
	}
	if _, again := s.rec.Mapped[id]; !again {
		if err := svc.ledger.MayMap(s.rec); err != nil {
			return nil, nil, MappedBlock{}, err
		}
		s.rec.Map(b)
	}
	return b, svc.memoryOf(b), MappedBlock{Generation: b.Generation, Bytes: b.Size}, nil
}

// lent finds a block of the pool that a buffer uses, or returns nil. The caller holds Service.mu.
func (p *Pool) lent(id uint64) *ledger.Block {
	if b := p.svc.ledger.Blocks.Get(id); b != nil && b.Pool == p.rec && b.State == ledger.BlockLeased {
		return b
	}
	return nil
}

// consumedBy says whether the session has a consumer in the channel. The caller holds Service.mu.
func (ch *channel) consumedBy(s *Session) bool {
	for m := range s.members {
		if m.channel == ch && m.role() == Consumer && m.entered {
			return true
		}
	}
	return false
}

// lending is for producers that leave their channels. It has one glance for each of these channels. The glance says which of these
// producers' blocks the channel still needs.
type lending map[*channel]*glance

// glance is the result of one reading of a channel's memory, for some producers of the channel.
type glance struct {
	*shmchannel.Look
	producers []*member
}

// look reads the memory of the channel, once for all these producers. The caller holds Service.mu.
func (ch *channel) look(producers []*member) *glance {
	of := make([]*shmchannel.Member, len(producers))
	for i, m := range producers {
		of[i] = m.Member
	}
	return &glance{ch.host.Look(of...), producers}
}

// needs says whether the channel needs, or may need, a block that one of these producers may have published.
func (g *glance) needs(b *ledger.Block, producers []*member) bool {
	return slices.ContainsFunc(producers, func(m *member) bool { return g.Unsure(m.Member) || g.Names(m.Member, b.ID) })
}

// unsure says whether there is a producer for which the service could not read which blocks the channel needs.
func (g *glance) unsure() bool {
	return slices.ContainsFunc(g.producers, func(m *member) bool { return g.Unsure(m.Member) })
}

// names says whether the channel certainly needs a block that one of these producers published.
func (g *glance) names(b *ledger.Block, producers []*member) bool {
	return slices.ContainsFunc(producers, func(m *member) bool { return g.Names(m.Member, b.ID) })
}

// needs says whether one of the channels needs, or may need, a block. The caller holds Service.mu.
func (of lending) needs(b *ledger.Block) bool {
	for ch, g := range of {
		if ch.pool.rec == b.Pool && g.needs(b, g.producers) {
			return true
		}
	}
	return false
}

// keep is for a write lease that is about to end. It adds the lease's buffer to the map `kept` of each channel that the session's producers
// leave. The result is true if a channel needs the buffer or may need it. keep also adds a buffer that no channel needs any more, because
// consumers' work on the buffer may still run: later, releaseKept reads the fences of this work. If it is not certain that a channel needs
// the buffer, keep marks the buffer as doubted. The caller holds Service.mu.
func (of lending) keep(l *ledger.Lease) (needed bool) {
	b := l.Buffer
	named := false
	for ch, g := range of {
		if ch.pool.rec != b.Block.Pool || !l.Write {
			continue
		}
		if ch.kept[b] == nil {
			b.Frames++
		}
		ch.kept[b] = append(ch.kept[b], g.producers...)
		named = named || g.names(b.Block, g.producers)
	}
	needed = of.needs(b.Block)
	b.Doubted = needed && !named
	return needed
}

// promise notes in the member's timeline the fences that are in the member's file. The caller holds Service.mu.
func (m *member) promise() {
	if m.timeline == nil || !m.entered {
		return
	}
	found, _ := m.channel.host.Fences(nil, m.Member)
	for _, t := range found {
		m.timeline.promise(t.Word, t.Value)
	}
}

// releaseKept frees the buffers in ch.kept that neither the channel nor its consumers need any more. The caller holds Service.mu.
func (ch *channel) releaseKept() {
	if len(ch.kept) == 0 {
		return
	}
	var free []*ledger.Buffer
	of := make(map[*member]struct{})
	for _, producers := range ch.kept {
		for _, m := range producers {
			of[m] = struct{}{}
		}
	}
	found := ch.look(slices.Collect(maps.Keys(of)))
	for b, producers := range ch.kept {
		if b.Doubted && found.names(b.Block, producers) {
			b.Doubted = false
			ch.pool.svc.changedBuffer(b)
		}
		if !found.needs(b.Block, producers) {
			free = append(free, b)
		}
	}
	if len(free) == 0 {
		return
	}
	done, ok := ch.consumersDone() // read after the consumers' holds: a consumer writes its fences before it clears its hold
	if !ok {
		return
	}
	for _, b := range free {
		writer := ch.kept[b][0].session // all producers of the list belong to one session
		work := done.Union(writer.timeline.outstanding())
		delete(ch.kept, b)
		b.Block.Fences = ch.pool.svc.pending(work.Union(b.Block.Fences))
		b.Frames--
		if b.Doubted && b.Frames == 0 {
			b.Doubted, b.Failed = false, true
			writer.breaks(b)
			defer writer.noteBroken()
		}
		ch.pool.svc.recycleUnused(b)
	}
}

// consumersDone returns the fences of the consumers' work on frames, without the fences that are already reached. If a consumer is writing
// a fence at this moment, the result `ok` is false. The caller holds Service.mu.
func (ch *channel) consumersDone() (done ledger.Fences, ok bool) {
	var found []shmchannel.Fence
	at := make(map[mempool.Fence]int) // the index of each fence in done, by timeline and word
	for _, m := range ch.host.Members(nil, shmchannel.ConsumerRole) {
		of := ch.members[m.ID]
		own := of.timeline
		if !of.entered || own == nil || own.dead {
			continue
		}
		if found, ok = ch.host.Fences(found[:0], m); !ok {
			return nil, false
		}
		for _, t := range found {
			one := own.promise(t.Word, t.Value)
			key := mempool.Fence{Timeline: own.id, Word: t.Word}
			if i, again := at[key]; again { // another consumer of the same session has a fence of this word
				done[i].Value = max(done[i].Value, one.Value)
			} else if !ch.pool.svc.over(one) {
				at[key] = len(done)
				done = append(done, one)
			}
		}
	}
	return done, true
}
