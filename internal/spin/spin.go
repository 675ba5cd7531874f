// Package spin decides which waiters spin before they sleep. A waiter that spins checks its condition in a loop. It reacts faster than a
// waiter that sleeps, because waking a thread takes longer than a program usually waits for another program that shares memory with it. But
// a waiter that spins uses a whole CPU.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Time is how long a waiter spins before it sleeps. To wake a thread takes about this long.
const Time = 100 * time.Microsecond

// mostSleeps is the greatest number of waits in a row in which a waiter does not spin, after it has spun in vain.
const mostSleeps = 63

var (
	spinning atomic.Int64
	// most is how many waiters of this process may spin at a time: one for every four CPUs, but at least one.
	most = max(int64(runtime.GOMAXPROCS(0)/4), 1)
)

// Begin reports whether one more waiter of this process may spin. If Begin returns true, it counts the waiter as one that spins, and the
// caller must call [End] when the waiter stops spinning.
func Begin() bool {
	if spinning.Add(1) <= most {
		return true
	}
	spinning.Add(-1)
	return false
}

// End notes that a waiter has stopped spinning. The caller calls End once for each call of [Begin] that returned true.
func End() { spinning.Add(-1) }

// Adaptive tells one waiter whether to spin. If the waiter spins but its condition does not come true, Adaptive tells the waiter not to
// spin in its next waits. The number of these waits is 1 the first time, 3 the second time in a row, then 7 and so on, up to mostSleeps.
// The reason: if the CPUs are busy, a waiter that spins takes a CPU from the work that it waits for, and so waits longer. The zero value
// tells the waiter to spin in the first wait.
type Adaptive struct{ sleeps, left int }

// Worth reports whether the waiter should spin in the wait that begins now.
func (a *Adaptive) Worth() bool {
	if a.left == 0 {
		return true
	}
	a.left--
	return false
}

// Learn records whether the condition came true while the waiter spun.
func (a *Adaptive) Learn(found bool) {
	a.sleeps = min(2*a.sleeps+1, mostSleeps)
	if found {
		a.sleeps = 0
	}
	a.left = a.sleeps
}
