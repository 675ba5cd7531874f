package mempool

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a live buffer takes of the service decides how many there can be: see docs/performance.md.
func TestALiveBufferTakesLittleOfTheService(t *testing.T) {
	const buffers, most = 4096, 600
	svc := newService(t)
	owner := open(t, svc)
	p := createPool(t, owner, PoolSpec{Name: "p", Kind: Host, MaxBytes: buffers * 4096})
	w := hire(t, svc)
	leases := make([]*Lease, buffers)
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

// liveBytes is what is left of the heap when it was collected.
func liveBytes() uint64 {
	runtime.GC()
	runtime.GC() // what had a finaliser goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
