// Package spin decides which waiters spin before they sleep. A spinning waiter looks again and again for what it waits for: to be woken
// takes longer than most waits between programs that hand memory to each other. But it uses a whole CPU meanwhile.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Time is how long a waiter spins before it sleeps: to be woken takes as long.
const Time = 100 * time.Microsecond

// mostSleeps is how many times a waiter that spun in vain sleeps at once, at most.
const mostSleeps = 63

var (
	spinning atomic.Int64
	// most is how many waiters of this process spin at a time: one CPU in four may be used for it, and one in any case.
	most = max(int64(runtime.GOMAXPROCS(0)/4), 1)
)

// Begin says whether one more waiter may spin. It calls [End] when it spins no more.
func Begin() bool {
	if spinning.Add(1) <= most {
		return true
	}
	spinning.Add(-1)
	return false
}

// End ends what [Begin] began.
func End() { spinning.Add(-1) }

// Adaptive tells a waiter whether spinning is worth it: each time in vain the waiter sleeps at once for more of its next waits. Where
// the CPUs are busy, a spinning waiter only keeps others from the work that it waits for. The zero value begins by spinning.
type Adaptive struct{ sleeps, left int }

// Worth says whether to spin this time.
func (a *Adaptive) Worth() bool {
	if a.left == 0 {
		return true
	}
	a.left--
	return false
}

// Learn notes whether what the waiter waited for came while it spun.
func (a *Adaptive) Learn(found bool) {
	a.sleeps = min(2*a.sleeps+1, mostSleeps)
	if found {
		a.sleeps = 0
	}
	a.left = a.sleeps
}
