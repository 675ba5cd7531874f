// Package wakeful decides which waiters look again and again for what they wait for, instead of sleeping. To be woken takes longer than
// most waits between programs that hand memory to each other; but a waiter that looks uses a whole CPU meanwhile.
package wakeful

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Limit is how long one looks before one sleeps: to be woken takes as long.
const Limit = 100 * time.Microsecond

// mostSleeps is how many times one who looked in vain sleeps at once, at most.
const mostSleeps = 63

var (
	awake atomic.Int64
	// One CPU in four may be looked away with.
	spare = int64(runtime.GOMAXPROCS(0) / 4)
)

// Spare says whether there are CPUs enough that those who look need not let others run.
func Spare() bool { return spare > 0 }

// Stay says whether one more may look; [Leave] is to be called then. least is how many may in any case.
func Stay(least int64) bool {
	if awake.Add(1) <= max(spare, least) {
		return true
	}
	awake.Add(-1)
	return false
}

// Leave ends what [Stay] began.
func Leave() { awake.Add(-1) }

// Eagerness tells whether it is worth looking: each time in vain it is left off for longer. On a machine whose CPUs are busy it
// would only keep those from work that one waits for. Its zero value is willing.
type Eagerness struct{ sleeps, left int }

// Willing says whether to look this time.
func (e *Eagerness) Willing() bool {
	if e.left == 0 {
		return true
	}
	e.left--
	return false
}

// Learn notes whether it was worth it.
func (e *Eagerness) Learn(found bool) {
	e.sleeps = min(2*e.sleeps+1, mostSleeps)
	if found {
		e.sleeps = 0
	}
	e.left = e.sleeps
}
