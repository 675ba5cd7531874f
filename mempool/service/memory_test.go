package service

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/ration"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
)

// uncheckedService makes a service that keeps no copy of its ledger, which would count as its memory.
func uncheckedService(t *testing.T) *Service {
	t.Setenv("POOLBRIDGE_CHECK_LEASES", "") // so that it is as before in the end
	require.NoError(t, os.Unsetenv("POOLBRIDGE_CHECK_LEASES"))
	return newService(t)
}

// The heap memory that each live buffer takes limits how many buffers a service can have: see docs/performance.md.
func TestALiveBufferTakesLittleOfTheService(t *testing.T) {
	const buffers, most = 4096, 600
	svc := uncheckedService(t)
	owner := open(t, svc)
	p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: buffers * 4096})
	w := hire(t, svc)
	leases := make([]Lease, buffers)
	before := liveBytes()
	for i := range leases {
		leases[i] = allocate(t, w.Session, p, 4096)
		_, _, err := leases[i].Export()
		require.NoError(t, err)
	}
	each := (liveBytes() - before) / buffers
	t.Logf("%d bytes each", each)
	assert.Less(t, each, uint64(most))
	for _, l := range leases {
		release(t, l)
	}
}

func TestWhatIsGoneTakesNoRoomInTheService(t *testing.T) {
	const most = 64 << 10
	svc := uncheckedService(t)
	owner := open(t, svc)
	for i := range eventlog.Capacity { // fill the event log, which keeps its events
		svc.mu.Lock()
		svc.mu.note(mempool.HistoryEvent{UID: uint32(i / ration.Burst), Text: strings.Repeat("an event with many words ", 10)}, nil)
		svc.mu.Unlock()
	}
	for what, storm := range map[string]func(n int){
		"sessions": func(n int) {
			sessions := make([]*Session, n)
			for i := range sessions {
				sessions[i] = open(t, svc)
			}
			for _, s := range sessions {
				s.End(mempool.SessionLeft, "", nil)
			}
		},
		"leases, buffers and names of a session that lives on": func(n int) {
			p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: uint64(n) * 4096})
			leases := make([]Lease, n)
			for i := range leases {
				leases[i] = allocate(t, owner, p, 4096)
				publish(t, leases[i], mempool.Publication{Name: fmt.Sprint(i)})
			}
			for i, l := range leases {
				release(t, l)
				require.NoError(t, owner.Unpublish(fmt.Sprint(i)))
			}
			require.NoError(t, owner.DestroyPool(p.rec.Info.ID))
		},
	} {
		storm(100) // makes the objects that the service makes only once
		before := liveBytes()
		storm(20_000)
		assert.Less(t, int64(liveBytes()-before), int64(most), what)
	}
}

// liveBytes returns the size of the heap after a garbage collection.
func liveBytes() uint64 {
	runtime.GC()
	runtime.GC() // the second collection frees objects that had a finaliser
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
