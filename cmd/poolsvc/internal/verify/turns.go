package verify

import (
	"context"
	"slices"
	"sync"
)

// turns decides which check begins next. Several goroutines run checks. After each check, a goroutine calls the method `next` to get its
// next check. Checks begin in the order of the list. If all workers that a check can use are in use, a later check may begin before it.
type turns struct {
	room map[string]int // how many checks may use the workers of a name at the same time; it has an entry for every name

	mu    sync.Mutex
	freed sync.Cond
	left  []turn
	busy  map[string]int
}

// turn is a check that has not begun.
type turn struct {
	check int
	uses  string // name of the workers that the check uses
}

func newTurns(room map[string]int, left []turn) *turns {
	t := &turns{room: room, left: left, busy: make(map[string]int)}
	t.freed.L = &t.mu
	return t
}

// next returns the next check. If no check is left, or if ctx has ended, ok is false. If the workers of all remaining checks are in use,
// the method `next` waits. When a returned check has ended, the caller must pass it to the method `done`.
func (t *turns) next(ctx context.Context) (next turn, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.left) > 0 && ctx.Err() == nil {
		i := slices.IndexFunc(t.left, func(n turn) bool { return t.busy[n.uses] < t.room[n.uses] })
		if i >= 0 {
			next = t.left[i]
			t.left = slices.Delete(t.left, i, i+1)
			t.busy[next.uses]++
			return next, true
		}
		t.freed.Wait()
	}
	return turn{}, false
}

// done records that a check has ended, and wakes the goroutines that wait in the method `next`.
func (t *turns) done(n turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy[n.uses]--
	t.freed.Broadcast()
}
