package shmchannel

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
)

// MemberConfig has what [OpenProducer] and [OpenConsumer] need to know about the member. The caller owns the files, and may close them
// after it has opened the member.
type MemberConfig struct {
	Roster    *os.File
	Sequencer *os.File
	// Own is the member's own file: the track of a producer, the cursor of a consumer.
	Own *os.File
	// Seat and ID are the member's seat and id in the roster.
	Seat int
	ID   uint64
	// Spin is how long the member spins before it sleeps.
	Spin time.Duration
	// Spinner decides whether the member spins. If Spinner is nil, the member always spins.
	Spinner Spinner
}

// Spinner decides whether a member spins before it sleeps. A member never calls two methods of its Spinner at the same time.
type Spinner interface {
	// Begin reports whether the member may spin now.
	Begin() bool
	// The member calls End once after each Begin that returned true. `found` says whether the member found what it waited for while it spun.
	End(found bool)
}

// maxSleep is the longest time that a member sleeps before it checks again what it waits for. The limit exists because a member that dies
// does not wake other members.
const maxSleep = 100 * time.Millisecond

// member has the fields and methods that a producer and a consumer have in common.
type member struct {
	*channel
	seat    int
	id      uint64
	spin    time.Duration
	spinner Spinner
	word    *futex // the futex on which the member sleeps

	mu      sync.Mutex
	closed  bool
	counts  Counts
	asleep  int        // number of calls that sleep; a sleeping call does not hold mu
	awake   *sync.Cond // signalled when asleep becomes 0
	ctxDone <-chan struct{}
	ctxStop func() bool
}

// Counts says how many frames a member has published, taken or missed since the caller opened it.
type Counts struct {
	// Frames is the number of frames that a producer has published or a consumer has taken. Bytes is the sum of the sizes of the frames'
	// buffers, in bytes.
	Frames, Bytes uint64
	// Missed is the sum of [Frame.Missed].
	Missed uint64
}

// Counts returns the member's counts. It also works after the member was closed.
func (m *member) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

func (m *member) init(c *channel, config MemberConfig, word *futex) {
	m.channel, m.seat, m.id, m.spin, m.spinner, m.word = c, config.Seat, config.ID, config.Spin, config.Spinner, word
	m.awake = sync.NewCond(&m.mu)
}

// gone returns the error of a member that is closed or does not take part.
func (m *member) gone(why string) error { return fmt.Errorf("%w: member %d %s", ErrLeft, m.id, why) }

// pause is the state of one call that waits.
type pause struct {
	began  time.Time
	looked bool // the call does not spin any more: its time for spinning is over, or it may not spin
	looks  int
	armed  bool
	value  uint32
}

// relooks is how many times a spinning member checks what it waits for before it calls runtime.Gosched to let other goroutines run. The
// member does not call runtime.Gosched after each check, because this call may wake a thread, which takes much longer than a check.
const relooks = 64

// rest is for a method of the member that waits for something. The method checks whether it has found what it waits for. If not, it calls
// rest, and checks again when rest returns. While the member may spin, rest returns at once. When the time for spinning is over, rest first
// arms the futex and returns, so that the method checks once more before the member sleeps. The next call of rest sleeps, but no longer
// than the limit. The caller holds m.mu; rest releases m.mu while the member spins or sleeps.
//
// Errors: the context's error.
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

// found ends the spinning of a call, if the call spun. `something` reports whether the call found what it waited for.
func (m *member) found(p *pause, something bool) {
	if p.looked || p.began.IsZero() {
		return
	}
	p.looked = true
	if m.spinner != nil {
		m.spinner.End(something)
	}
}

// watch makes the calls that sleep wake up when the context ends. Most calls of a member's methods get the same context, so watch does
// nothing if the context is the same as in the last call of watch.
func (m *member) watch(ctx context.Context) {
	if ctx.Done() == nil || ctx.Done() == m.ctxDone {
		return
	}
	if m.ctxStop != nil {
		m.ctxStop()
	}
	m.ctxDone, m.ctxStop = ctx.Done(), context.AfterFunc(ctx, m.Wake)
}

// Wake wakes the calls of this member that sleep, so that each call checks whether its context has ended.
func (m *member) Wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.word.advance()
	}
}

// close marks the member closed and waits until no call sleeps. It returns false if the member was closed before. The caller holds m.mu.
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
