package service

import (
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
