// Package ration limits how often things are reported that a client can cause as often as it likes.
package ration

import "time"

// Burst is how many things with the same key can be reported at once. Afterwards, one more can be reported after each Pause.
const (
	Burst = 256
	Pause = time.Second
)

// Ration has the state for all keys. The zero Ration is ready to use. Its user locks it.
type Ration[K comparable] struct {
	state map[K]*state
}

// state is a bucket that is empty when `spent` is Burst.
type state struct {
	spent int
	since time.Time // when `spent` was last lowered
}

// maxKeys is how many keys a Ration remembers before it forgets those of which nothing is spent.
const maxKeys = 1024

// Take reports whether a thing with this key may be reported now.
func (r *Ration[K]) Take(key K, now time.Time) bool {
	if r.state == nil {
		r.state = make(map[K]*state)
	}
	s := r.state[key]
	if s == nil {
		if len(r.state) >= maxKeys {
			r.prune(now)
		}
		s = &state{since: now}
		r.state[key] = s
	}
	s.recover(now)
	if s.spent == Burst {
		return false
	}
	s.spent++
	return true
}

// recover lowers `spent` by the number of Pauses that have passed.
func (s *state) recover(now time.Time) {
	passed := int(min(now.Sub(s.since)/Pause, Burst))
	if passed >= s.spent {
		s.spent, s.since = 0, now
		return
	}
	s.spent -= passed
	s.since = s.since.Add(time.Duration(passed) * Pause)
}

func (r *Ration[K]) prune(now time.Time) {
	for key, s := range r.state {
		if s.recover(now); s.spent == 0 {
			delete(r.state, key)
		}
	}
}
