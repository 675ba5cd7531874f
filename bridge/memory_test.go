package bridge

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

// What an idle session takes of the service decides how many there can be: see docs/performance.md.
func TestAnIdleSessionTakesLittleOfTheService(t *testing.T) {
	const sessions, most = 64, 24 << 10
	r := start(t, ServerConfig{}, defaultLimits)
	greet := func() {
		for range sessions {
			greeted(t, r.path).ask(2, &wire.StatsRequest{}, &wire.StatsReply{})
		}
	}
	greet()
	each := int64(most)
	for tries := 0; tries < 3 && each >= most; tries++ { // the first may hit upon stacks that are about to grow
		before := liveBytes()
		greet()
		each = (liveBytes() - before) / sessions
		t.Logf("%d bytes each, with those of the client", each)
	}
	assert.Less(t, each, int64(most))
}

// liveBytes is what the heap and the stacks have when the heap was collected.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC() // what had a finaliser goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
