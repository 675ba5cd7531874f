package mempool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLookingEndsWithWhatIsWaitedForOrAfterAWhile(t *testing.T) {
	assert.True(t, look(past))
	changed := make(chan struct{})
	assert.False(t, look(changed))
	begun := make(chan struct{})
	seen := make(chan bool)
	go func() {
		close(begun)
		for !look(changed) {
		}
		seen <- true
	}()
	<-begun
	close(changed)
	select {
	case found := <-seen:
		assert.True(t, found)
	case <-time.After(time.Minute):
		t.Fatal("it looks and does not see")
	}
}
