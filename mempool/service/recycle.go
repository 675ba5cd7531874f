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
