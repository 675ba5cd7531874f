package service

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
)

// blockMemory is the memory of a block. It makes the block's export once and keeps it. A service may have a million blocks, so this struct
// must stay small.
type blockMemory struct {
	mempool.Allocation
	mu       sync.Mutex
	exported bool // mu guards exported and export
	export   mempool.Export
}

// exportOnce makes the block's export on the first call, and returns the same export in later calls.
func (m *blockMemory) exportOnce(events *eventlog.Events) (mempool.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.exported {
		x, err := m.Export()
		if events.Called(eventlog.ExportBlock, err) != nil {
			return mempool.Export{}, err
		}
		m.export, m.exported = x, true
	}
	return m.export, nil
}

// newBlock is a block that the backing has allocated, with what the books have of it.
type newBlock struct {
	memory *blockMemory
	place  uint64
	export []byte
}

// storeBlock gives the store what a successor needs to have the memory, and says where the memory is.
func (p *Pool) storeBlock(mem mempool.Allocation, backing mempool.Backing, number uint64) newBlock {
	b := newBlock{memory: &blockMemory{Allocation: mem}}
	if a, ok := mem.(mempool.Adoptable); ok {
		b.place = a.Place()
		return b
	}
	if p.svc.descriptors.store == nil {
		return b
	}
	x, err := mem.Export()
	switch {
	case err != nil: // the session that leases the block gets the error
	case len(x.Files) > 0:
		b.place = p.svc.descriptors.put(x.Files[0])
	case number != 0:
		b.place, b.export = number, x.Data
		if p.aged {
			b.memory.exported, b.memory.export = true, exportOf(x.Data, number, backing.Export().Files[0])
		}
	}
	return b
}

// exportOf returns the export of a block that is not in the CUDA memory pool which a client has opened with the service's pool.
func exportOf(data []byte, number uint64, f *os.File) mempool.Export {
	if len(data) > 0 {
		data = binary.LittleEndian.AppendUint64(slices.Clone(data), number)
	}
	return mempool.Export{Data: data, Files: []*os.File{f}}
}

// ensureBacking returns the backing from which the pool allocates, and the number of its descriptor. It makes the backing if there is none.
func (p *Pool) ensureBacking() (mempool.Backing, uint64, error) {
	p.making.Lock()
	defer p.making.Unlock()
	if p.backing != nil {
		return p.backing, p.rec.File, nil
	}
	svc, of := p.svc, p.rec.Info
	backing, err := mempool.NewBacking(mempool.PoolSpec{Name: of.Name, Kind: of.Kind, Device: of.Device.UUID, MaxBytes: of.MaxBytes}, svc.memory)
	if svc.eventLog.Called(eventlog.CreateBacking, err) != nil {
		return nil, 0, err
	}
	number := svc.descriptors.putBacking(backing)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	p.backing, p.rec.File = backing, number
	svc.ledger.Touch(p.rec)
	return backing, number, nil
}
