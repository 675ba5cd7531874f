package service

import (
	"math"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

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

// become gives a block that counts as held another state. The result `fewer` is true if fewer processes keep the block than before. The
// caller holds Service.mu.
func (p *Pool) become(b *ledger.Block, state ledger.BlockState) (fewer bool) {
	b.SetFences(p.svc.timelines.Pending(b.Fences))
	return b.Become(state)
}

// retireLost frees the lost blocks that nobody uses.
func (p *Pool) retireLost() {
	if p.lost {
		p.choose(math.MaxUint64, false, func(b *ledger.Block) bool { return b.Place == ledger.PlaceLost })
	}
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
