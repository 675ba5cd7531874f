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

// exportOf returns the export of a block that is not in the CUDA memory pool which a client has opened with the service's pool.
func exportOf(data []byte, number uint64, f *os.File) mempool.Export {
	if len(data) > 0 {
		data = binary.LittleEndian.AppendUint64(slices.Clone(data), number)
	}
	return mempool.Export{Data: data, Files: []*os.File{f}}
}
