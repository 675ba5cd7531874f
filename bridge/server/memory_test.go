package server

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

// The memory that an idle session takes in the service limits the number of sessions: see docs/performance.md.
func TestAnIdleSessionTakesLittleOfTheService(t *testing.T) {
	const sessions, most = 64, 24 << 10
	r := start(t, Config{}, DefaultLimits())
	greet := func() {
		for range sessions {
			greeted(t, r.path).Ask(2, &wire.StatsRequest{}, &wire.StatsReply{})
		}
	}
	greet()
	each := int64(most)
	for tries := 0; tries < 3 && each >= most; tries++ { // try again, because stacks may grow during the first try
		before := liveBytes()
		greet()
		each = (liveBytes() - before) / sessions
		t.Logf("%d bytes each, with those of the client", each)
	}
	assert.Less(t, each, int64(most))
}

// liveBytes returns the bytes of the heap and the stacks after a garbage collection.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC() // the second collection frees objects that had a finaliser
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
