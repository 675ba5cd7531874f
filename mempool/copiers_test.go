package mempool

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// newCopiers returns copiers, which are closed when the test ends. Until then, GOMAXPROCS is 8, even if the machine has fewer cores.
func newCopiers(t testing.TB, how copying) *copiers {
	t.Helper()
	before := runtime.GOMAXPROCS(8)
	c := &copiers{how: how}
	t.Cleanup(func() {
		c.close()
		runtime.GOMAXPROCS(before)
	})
	return c
}

func TestCopiersCopyWhatFits(t *testing.T) {
	c := newCopiers(t, copying{stripe: 1000, together: 4, vigil: time.Microsecond})
	src := random(20_000, 1)
	for _, n := range []int{0, 1, 999, 1000, 1001, 1999, 2000, 2001, 10_007, 20_000} {
		dst := make([]byte, n+1)
		assert.Equal(t, n, c.copy(dst[:n], src))
		assert.True(t, bytes.Equal(src[:n], dst[:n]), "%d bytes", n)
		assert.Zero(t, dst[n], "beyond %d bytes", n)
		dst = make([]byte, 20_000)
		assert.Equal(t, n, c.copy(dst, src[:n]))
		assert.True(t, bytes.Equal(src[:n], dst[:n]), "%d bytes", n)
	}
}

func TestWhatCopiersCopiedMayBeChangedAtOnce(t *testing.T) {
	c := newCopiers(t, copying{stripe: 4096, together: 8, vigil: time.Microsecond})
	var all sync.WaitGroup
	for caller := range 4 {
		all.Go(func() {
			src, dst := make([]byte, 1<<20), make([]byte, 1<<20)
			for round := range 30 {
				b := byte(caller*30 + round + 1)
				for i := range src {
					src[i] = b
				}
				assert.Equal(t, len(src), c.copy(dst, src))
				clear(src)
				assert.Equal(t, len(dst), bytes.Count(dst, []byte{b}), "the whole copy was made before")
			}
		})
	}
	all.Wait()
}

func TestACopyDoesNotWaitForHelpersThatSleepOn(t *testing.T) {
	c := newCopiers(t, copying{stripe: 1000, together: 3})
	c.started, c.asleep = 2, 2 // sets only the counters: no goroutine is started that could wake up
	c.wake = make(chan struct{}, 2)
	src, dst := random(10_000, 2), make([]byte, 10_000)
	c.copy(dst, src)
	assert.True(t, bytes.Equal(src, dst))
	assert.Empty(t, c.jobs)
	assert.Zero(t, c.open.Load())
}

func TestCopiersThatFoundNothingSleepUntilTheyAreClosed(t *testing.T) {
	c := newCopiers(t, copying{stripe: 1000, together: 4, vigil: time.Microsecond})
	dst := make([]byte, 10_000)
	for range 3 {
		c.copy(dst, random(10_000, 3))
		assert.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.asleep == c.started
		}, patience, time.Millisecond)
	}
	c.close()
	c.close()
	assert.Zero(t, c.started)
	c.copy(dst, random(10_000, 4)) // starts the goroutines again
	assert.True(t, bytes.Equal(random(10_000, 4), dst))
}
