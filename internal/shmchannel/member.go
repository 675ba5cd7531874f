package shmchannel

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// MemberConfig is what a member needs to take part. The files stay the caller's, and may be closed once the member is open.
type MemberConfig struct {
	Roster    *os.File
	Sequencer *os.File
	// Own is the track of a producer, the cursor of a consumer.
	Own *os.File
	// Slot and ID are the member's in the roster.
	Slot int
	ID   uint64
	// Spin is how long the member looks again and again before it sleeps.
	Spin time.Duration
	// Spinner is asked whether to do so; nil: always.
	Spinner Spinner
}

// Spinner decides whether a member spins before it sleeps. No two of its methods are called at a time.
type Spinner interface {
	// Begin says whether to look now.
	Begin() bool
	// End follows if it did. found says whether looking was worth it.
	End(found bool)
}

// maxSleep is how long a member sleeps before it looks again, whatever happens. A member that dies wakes nobody.
const maxSleep = 100 * time.Millisecond

// member is what a producer and a consumer have in common.
type member struct {
	*channel
	slot    int
	id      uint64
	spin    time.Duration
	spinner Spinner
	word    *futex // on which it sleeps

	mu      sync.Mutex
	closed  bool
	asleep  int        // calls that sleep, without mu
	awake   *sync.Cond // asleep has become 0
	ctxDone <-chan struct{}
	ctxStop func() bool
}

func (m *member) init(c *channel, config MemberConfig, word *futex) {
	m.channel, m.slot, m.id, m.spin, m.spinner, m.word = c, config.Slot, config.ID, config.Spin, config.Spinner, word
	m.awake = sync.NewCond(&m.mu)
}

// gone is the error of a member that is closed, or does not take part.
func (m *member) gone(why string) error { return fmt.Errorf("%w: member %d %s", ErrLeft, m.id, why) }

// pause is what a call remembers while it waits.
type pause struct {
	began  time.Time
	looked bool // for as long as it may
	looks  int
	armed  bool
	value  uint32
}

// relooks is how often a member that spins looks before it lets other goroutines run. That may wake a thread.
const relooks = 64

// rest returns when it is time for a call that found nothing to look again. It looks for the time that the member spins, then
// once more after it has said that it is about to sleep, and then it sleeps, but no longer than the limit. m.mu is held, but
// not while it rests.
//
// Errors: the context's.
func (m *member) rest(ctx context.Context, p *pause, limit time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if m.spins(p) {
		m.mu.Unlock()
		if p.looks++; p.looks%relooks == 0 {
			runtime.Gosched()
		}
		m.mu.Lock()
		return nil
	}
	if !p.armed {
		m.watch(ctx)
		p.value, p.armed = m.word.arm(), true
		return nil
	}
	limit = min(limit, maxSleep)
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, max(time.Until(deadline), time.Microsecond))
	}
	m.asleep++
	m.mu.Unlock()
	m.word.sleep(p.value, limit)
	m.mu.Lock()
	if m.asleep--; m.asleep == 0 {
		m.awake.Broadcast()
	}
	*p = pause{}
	return nil
}

func (m *member) spins(p *pause) bool {
	switch {
	case m.spin <= 0 || p.looked:
		return false
	case p.began.IsZero():
		p.looked = m.spinner != nil && !m.spinner.Begin()
		p.began = time.Now()
	case time.Since(p.began) >= m.spin:
		m.found(p, false)
	}
	return !p.looked
}

// found says whether a call that may have looked again and again has found something.
func (m *member) found(p *pause, something bool) {
	if p.looked || p.began.IsZero() {
		return
	}
	p.looked = true
	if m.spinner != nil {
		m.spinner.End(something)
	}
}

// watch has the end of the context wake the member. A member is mostly called with the same context again.
func (m *member) watch(ctx context.Context) {
	if ctx.Done() == nil || ctx.Done() == m.ctxDone {
		return
	}
	if m.ctxStop != nil {
		m.ctxStop()
	}
	m.ctxDone, m.ctxStop = ctx.Done(), context.AfterFunc(ctx, m.Wake)
}

// Wake has the calls that sleep look at their contexts.
func (m *member) Wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.word.advance()
	}
}

// close ends the calls that wait and unmaps the channel. It says whether this is the first time. m.mu is held.
func (m *member) close() bool {
	if m.closed {
		return false
	}
	m.closed = true
	if m.ctxStop != nil {
		m.ctxStop()
	}
	for m.asleep > 0 {
		m.word.advance()
		m.awake.Wait()
	}
	return true
}
