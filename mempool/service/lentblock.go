package service

import (
	"maps"
	"slices"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
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
	b, info, err := s.mapBlock(channel, id)
	if err != nil {
		return MappedBlock{}, err
	}
	if info.Export, err = b.exportOnce(); err == nil {
		return info, nil
	}
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if s.mapped[b.id] == b {
		b.pool.unmap(s, b)
	}
	return MappedBlock{}, err
}

// mapBlock notes that the session maps a block, so that the block is not freed.
func (s *Session) mapBlock(channel, id uint64) (*block, MappedBlock, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	ch, err := s.anyChannel(channel)
	if err != nil {
		return nil, MappedBlock{}, err
	}
	if !ch.consumedBy(s) {
		return nil, MappedBlock{}, situation.Of(mempool.ErrDenied, "session %d is no consumer of channel %q", s.id, ch.info.Name)
	}
	b := ch.pool.lent[id]
	if b == nil {
		return nil, MappedBlock{}, situation.Of(mempool.ErrNotFound, "no buffer of pool %q uses block %d", ch.pool.info.Name, id)
	}
	if _, again := s.mapped[id]; !again {
		if err := s.mayMap(); err != nil {
			return nil, MappedBlock{}, err
		}
		b.mapped.add(s)
		s.mapped[id] = b
	}
	return b, MappedBlock{Generation: b.generation, Bytes: b.size}, nil
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

// indexLent makes the map p.lent, which maps ids to the blocks that buffers of the pool use. The service makes this map when it makes the
// first channel of the pool. The caller holds Service.mu.
func (p *Pool) indexLent() {
	if p.lent != nil {
		return
	}
	p.lent = make(map[uint64]*block)
	for b := range p.svc.buffers.all() {
		if b.block.pool == p {
			p.lend(b.block)
		}
	}
}

// lend adds a block that a buffer uses to the index, if the pool has an index. The caller holds Service.mu.
func (p *Pool) lend(b *block) {
	if p.lent != nil {
		p.lent[b.id] = b
	}
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
func (g *glance) needs(b *block, producers []*member) bool {
	return slices.ContainsFunc(producers, func(m *member) bool { return g.Unsure(m.Member) || g.Names(m.Member, b.id) })
}

// unsure says whether there is a producer for which the service could not read which blocks the channel needs.
func (g *glance) unsure() bool {
	return slices.ContainsFunc(g.producers, func(m *member) bool { return g.Unsure(m.Member) })
}

// names says whether the channel certainly needs a block that one of these producers published.
func (g *glance) names(b *block, producers []*member) bool {
	return slices.ContainsFunc(producers, func(m *member) bool { return g.Names(m.Member, b.id) })
}

// needs says whether one of the channels needs, or may need, a block. The caller holds Service.mu.
func (of lending) needs(b *block) bool {
	for ch, g := range of {
		if ch.pool == b.pool && g.needs(b, g.producers) {
			return true
		}
	}
	return false
}

// keep is for a write lease that is about to end. It adds the lease's buffer to the map `kept` of each channel that the session's producers
// leave. The result is true if a channel needs the buffer or may need it. keep also adds a buffer that no channel needs any more, because
// consumers' work on the buffer may still run: later, releaseKept reads the fences of this work. If it is not certain that a channel needs
// the buffer, keep marks the buffer as doubted. The caller holds Service.mu.
func (of lending) keep(l *Lease) (needed bool) {
	b := l.buffer
	named := false
	for ch, g := range of {
		if ch.pool != b.block.pool || !l.write {
			continue
		}
		if ch.kept[b] == nil {
			b.frames++
		}
		ch.kept[b] = append(ch.kept[b], g.producers...)
		named = named || g.names(b.block, g.producers)
	}
	needed = of.needs(b.block)
	b.doubted = needed && !named
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
	var free []*buffer
	of := make(map[*member]struct{})
	for _, producers := range ch.kept {
		for _, m := range producers {
			of[m] = struct{}{}
		}
	}
	found := ch.look(slices.Collect(maps.Keys(of)))
	for b, producers := range ch.kept {
		if b.doubted && found.names(b.block, producers) {
			b.doubted = false
			b.changed.broadcast()
		}
		if !found.needs(b.block, producers) {
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
		work := done.union(writer.timeline.outstanding())
		delete(ch.kept, b)
		b.block.fences = work.union(b.block.fences).pending()
		b.frames--
		if b.doubted && b.frames == 0 {
			b.doubted, b.failed = false, true
			writer.breaks(b)
			defer writer.noteBroken()
		}
		b.recycleUnused()
	}
}

// consumersDone returns the fences of the consumers' work on frames, without the fences that are already reached. If a consumer is writing
// a fence at this moment, the result `ok` is false. The caller holds Service.mu.
func (ch *channel) consumersDone() (done fences, ok bool) {
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
				done[i].value = max(done[i].value, one.value)
			} else if !one.over() {
				at[key] = len(done)
				done = append(done, one)
			}
		}
	}
	return done, true
}
