package service

import (
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// recycle takes back a block that no buffer uses any more. The caller holds Service.mu.
func (p *Pool) recycle(b *ledger.Block) {
	b.SetFences(p.svc.timelines.Pending(b.Fences))
	if len(b.Fences) > maxFences { // more fences than the service can send to the block's next user
		b.Holds++
		p.svc.ledger.Touch(b)
		p.svc.draining.await(b, func() { p.endHoldLocked(b) })
	}
	if b.TakeBack() {
		p.blockBecameFree()
	}
}

// blockBecameFree is called when a block became free for use. The caller holds Service.mu.
func (p *Pool) blockBecameFree() {
	p.room.broadcast()
	p.relief.broadcast()
	if p.rec.Closing {
		p.retire(p.rec.Cached, false)
	}
	p.retireLost()
}

// endHoldLocked ends one hold on b.
func (p *Pool) endHoldLocked(b *ledger.Block) {
	b.SetFences(p.svc.timelines.Pending(b.Fences))
	if b.EndHold() {
		p.blockBecameFree()
	}
}

// evict frees cached blocks that together have at least n bytes. It does not free blocks on which work is under way. The result says
// whether any bytes were freed before evict returns. The caller holds Service.mu; evict releases the mutex for driver calls.
func (p *Pool) evict(n uint64) bool {
	if p.rec.Cached == 0 && !p.rec.Stuck() {
		return false
	}
	given, err := p.freeCached(n, true)
	if err != nil {
		p.svc.mu.note(mempool.HistoryEvent{Kind: mempool.DriverError, Text: notGivenBack(err)}, p.rec)
	}
	return given > 0
}

// freeCached frees cached blocks that together have at least n bytes. The result `given` is how many bytes were freed before freeCached
// returns; `err` is the error of blocks that the driver failed to free. If `quiet` is true, freeCached does not free blocks with work under
// way. The caller holds Service.mu; freeCached releases the mutex for driver calls.
func (p *Pool) freeCached(n uint64, quiet bool) (given uint64, err error) {
	idle := p.retire(n, quiet)
	err = p.svc.reclaim.flush()
	for _, b := range idle {
		if b.State == ledger.BlockFreed {
			given += b.Size
		}
	}
	return given, err
}

// retire chooses cached blocks that are to be freed and that together have at least n bytes. It adds the chosen blocks that no session maps
// to the reclaim queue, and returns them. It recalls the chosen blocks that sessions map: these blocks come into the queue when the
// sessions have unmapped them. It also adds to the queue, and returns, the blocks that the driver failed to free before. If `quiet` is
// true, retire does not choose blocks with work under way. The caller holds Service.mu.
func (p *Pool) retire(n uint64, quiet bool) (idle []*ledger.Block) {
	var chosen uint64
	idle = p.rec.TakeStuck()
	if quiet { // the caller needs room: the stuck blocks may be enough
		for _, b := range idle {
			chosen += b.Size
		}
	}
	may := p.mayRetire(&n)
	for _, b := range idle {
		p.queueFree(b)
	}
	return append(idle, p.choose(n-min(n, chosen), quiet, may)...)
}

// choose chooses cached blocks as retire does, of those for which `may` returns true; nil: of all.
func (p *Pool) choose(n uint64, quiet bool, may func(*ledger.Block) bool) (idle []*ledger.Block) {
	var chosen uint64
	idle = p.rec.Choose(&chosen, n, false, quiet, may) // unmapped blocks first: no session must answer a recall
	recalled := p.rec.Choose(&chosen, n, true, quiet, may)
	for _, b := range recalled {
		p.become(b, ledger.BlockRecalling)
	}
	for _, b := range idle {
		p.queueFree(b)
	}
	p.recall(recalled)
	return idle
}

// Recall asks a session to unmap blocks as soon as none of the session's leases needs them, and then to call [Session.Dropped].
type Recall struct{ Blocks []uint64 }

func (Recall) notice() {}

// recall asks the sessions that map the blocks to give up their mappings. The caller holds Service.mu.
func (p *Pool) recall(blocks []*ledger.Block) {
	bySession := make(map[*ledger.Session][]uint64)
	for _, b := range blocks {
		for s := range b.Mapped.All() {
			bySession[s] = append(bySession[s], b.ID)
		}
	}
	for s, ids := range bySession {
		p.svc.sessionOf(s).tellLocked(Recall{Blocks: ids})
	}
}

// become gives a block that counts as held another state. The result `fewer` is true if fewer processes keep the block than before. The
// caller holds Service.mu.
func (p *Pool) become(b *ledger.Block, state ledger.BlockState) (fewer bool) {
	b.SetFences(p.svc.timelines.Pending(b.Fences))
	return b.Become(state)
}

// unmapLocked notes that a session no longer maps b.
func (p *Pool) unmapLocked(of *ledger.Session, b *ledger.Block) {
	last, recalling := of.Unmap(b), b.State == ledger.BlockRecalling
	switch {
	case last && recalling:
		p.queueFree(b)
	case recalling && p.become(b, ledger.BlockRecalling):
		p.room.broadcast()
	}
}
