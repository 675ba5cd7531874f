package eventlog

import (
	"strings"
	"time"
)

// Rest is the shortest time between two notes of a frequent event.
const Rest = 10 * time.Second

// Gap limits how often a frequent event is noted. Its user locks it.
type Gap struct {
	told  time.Time // when the event was last noted
	count int       // how often the event happened since then
}

// Tell counts one event. If the result `now` is true, the caller must note the event immediately; the result `count` is then the number of
// events since the last note. If the result `now` is false, the caller must not note the event.
func (g *Gap) Tell() (count int, now bool) {
	g.count++
	if !g.told.IsZero() && time.Since(g.told) < Rest {
		return 0, false
	}
	count = g.count
	*g = Gap{told: time.Now()}
	return count, true
}

// Refused does the same as [Gap.Tell], for a request that exceeded a limit. The parameter `limit` is the limit's name, or "" if it has none.
func (ev *Events) Refused(limit string) (count int, now bool) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	g := ev.refused[limit]
	if g == nil {
		g = new(Gap)
		ev.refused[limit] = g
	}
	return g.Tell()
}

// Lag says since when something has been full. Its user locks it.
type Lag struct {
	// Since is zero while it is not full.
	Since time.Time
	// Told says that an event was noted. Look resets it when it is not full any more.
	Told bool
}

// Look reports whether something is full of which `used` of `capacity` places are used. While it is full, Since is the time at which it
// became full. What was full still counts as full while it has room for only one thing more, because even a user that is slightly too slow
// makes room now and then.
func (l *Lag) Look(used, capacity uint64) bool {
	full := used == capacity || !l.Since.IsZero() && used > 0 && used+1 == capacity
	switch {
	case !full:
		*l = Lag{}
	case l.Since.IsZero():
		l.Since = time.Now()
	}
	return full
}

// maxText limits the bytes of an event's text, so that it fits into a page.
const maxText = 1000

// Cut shortens a text that has more than `most` bytes to at most `most` bytes.
func Cut(text string, most int) string {
	const dots = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}
