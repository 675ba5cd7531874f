package service

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// If a goroutine is woken while another goroutine holds the lock, the woken goroutine must sleep again until the lock is free. To sleep and
// wake again takes longer than the other goroutine holds the lock.
func TestAWaiterForRoomIsWokenWhenTheLockIsFree(t *testing.T) {
	svc := newService(t)
	s := open(t, svc)
	p, _ := fakePool(t, s, 1024)
	held := allocate(t, s, p, 1024)
	svc.mu.Lock()
	place := p.room.join(s.rec, 1024)
	wake := place.woken(p.room.changes, false)
	s.svc.endLeaseLocked(held.rec, false, nil)
	assert.NotZero(t, p.rec.Cached, "there is room")
	select {
	case <-wake:
		t.Error("it was woken while the lock is held")
	default:
	}
	svc.mu.Unlock()
	<-wake
	svc.mu.Lock()
	defer svc.mu.Unlock()
	place.leave()
}
