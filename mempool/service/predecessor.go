package service

import (
	"math"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file keeps the memory of kinds that a process cannot adopt as a whole. A descriptor of the driver keeps the memory of a process that died:
// that of a CUDA memory pool all memory of the pool, that of a block of kind vmm, or of a large block of kind device, the block. A successor only holds the descriptor and sends it to
// clients. It calls the driver only when it needs a new block: then it makes a pool of its own, from which it allocates. In an old pool it can
// neither allocate nor free: it uses the pool's blocks again, and the memory goes when no block of the old pool is left. The service works in no
// stream besides allocating and freeing, which it awaits, so that nobody can wait for work of a service that died. The methods of adoption in
// adopt.go take the memory over.

// inheritedMemory is the memory of a block that a predecessor has allocated, which this process does not access. The descriptor keeps it.
type inheritedMemory struct {
	mempool.Memory // nil
	export         mempool.Export
}

func (m *inheritedMemory) Export() (mempool.Export, error) {
	if m.export.Files == nil {
		return m.export, typed.Errorf(mempool.ErrUnavailable, "the memory is lost: it ended with the process of the service that had allocated it; write it again")
	}
	return m.export, nil
}

func (m *inheritedMemory) Free() error { return nil }

// letGoLocked closes the descriptor of a block that is freed, if no other block needs it.
func (p *Pool) letGoLocked(b *ledger.Block) {
	switch k := p.files[b.Place]; {
	case p.rec.Info.Kind.CanAdopt(), b.Place == p.rec.File, b.Place == ledger.PlaceLost:
	case k == nil:
		p.svc.descriptors.drop(b.Place)
	default:
		k.bytes -= b.Size
		if k.blocks--; k.blocks == 0 {
			_ = k.file.Close() // it was only held
			delete(p.files, b.Place)
			p.svc.descriptors.drop(b.Place)
		}
	}
}

// mayRetire returns which free blocks retire may choose; nil: all. The memory of an old pool comes back only when all its blocks are free, so
// that they are freed together, and until then they count.
func (p *Pool) mayRetire(n *uint64) func(*ledger.Block) bool {
	if len(p.files) == 0 || p.rec.Closing {
		return nil
	}
	free := make(map[uint64]int)
	for b := range p.rec.Free() {
		free[b.Place]++
	}
	for place, k := range p.files {
		if k.blocks > 1 && free[place] == k.blocks && *n > 0 {
			*n = math.MaxUint64
		}
	}
	return func(b *ledger.Block) bool {
		k := p.files[b.Place]
		return k == nil || free[b.Place] == k.blocks
	}
}
