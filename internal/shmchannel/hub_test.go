package shmchannel

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(tasks)
}

// sleeps reports whether a goroutine sleeps in a call of the member.
func (m *member) sleeps() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asleep > 0
}

func TestManyMembersThatWaitNeedFewThreads(t *testing.T) {
	if !canWait() {
		t.Skip("this kernel has no futex_waitv, so each member that waits needs a thread")
	}
	const many = 200 // more than one call of futex_waitv can wait for
	ctx := within(t)
	r := newRig(t, Spec{Capacity: 4})
	p := r.producer(8)
	consumers := make([]*testConsumer, many)
	for i := range consumers {
		consumers[i] = r.consumer(MemberSpec{})
	}
	before := threads(t)
	for round := range uint64(5) {
		taken := make(chan error)
		for _, c := range consumers {
			go func() {
				f := &Frame{}
				err := c.Take(ctx, f)
				if err == nil {
					assert.Equal(t, round+1, f.Number)
					err = c.Release(f, Fence{})
				}
				taken <- err
			}()
		}
		for _, c := range consumers {
			require.Eventually(t, c.sleeps, time.Minute, time.Millisecond)
		}
		assert.Less(t, threads(t)-before, many/2)
		p.publish()
		for range consumers {
			require.NoError(t, <-taken)
		}
	}
	sleeps.mu.Lock()
	defer sleeps.mu.Unlock()
	for _, g := range sleeps.groups {
		assert.Empty(t, g.sleepers)
	}
}

func TestAMemberThatSleepsWithoutAThreadWakesAtItsLimit(t *testing.T) {
	if !canWait() {
		t.Skip("this kernel has no futex_waitv")
	}
	f := &futex{}
	v := f.arm()
	sleeps.sleep(f, v, time.Millisecond)
	woken := make(chan struct{})
	go func() {
		sleeps.sleep(f, v, time.Hour)
		close(woken)
	}()
	f.wake()
	<-woken
	sleeps.sleep(f, v, time.Hour) // the word has changed
}
