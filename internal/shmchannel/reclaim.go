package shmchannel

import (
	"context"
	"math"
	"slices"
)

// Returned is a block that its producer can use again.
type Returned struct {
	Number uint64 // of the frame that it was published with
	Block  uint64
	Owner  any // as of the record
	// Fences must be reached before the block is written: consumers' work on the frame is done then.
	Fences []Fence
}

// loan is a block that the channel has.
type loan struct {
	number, block uint64
	owner         any
}

// span is the numbers from floor to next − 1.
type span struct{ floor, next uint64 }

// lent is what a producer knows of its blocks that the channel has.
type lent struct {
	state   uint64 // of the channel
	pending []loan // published, in order
	seen    int    // of pending, those that were looked at; what is left of them is in stuck
	stuck   []loan
	leaving []loan // the channel needs them no more; consumers may
	spans   []span
	held    []uint64 // numbers that consumers hold

	returned []Returned
	fences   []Fence
}

// Lent is how many of the producer's blocks the channel has.
func (p *Producer) Lent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) - p.seen + len(p.stuck)
}

// Lends says whether the channel has a block whose owner is what is asked for.
func (p *Producer) Lends(is func(owner any) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	lent := func(l loan) bool { return is(l.owner) }
	return slices.ContainsFunc(p.pending[p.seen:], lent) || slices.ContainsFunc(p.stuck, lent)
}

// Forget has the producer forget the blocks that the channel has, and returns their owners.
func (p *Producer) Forget() (owners []any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range slices.Concat(p.pending[p.seen:], p.stuck) {
		owners = append(owners, l.owner)
	}
	p.pending, p.stuck, p.seen = nil, nil, 0
	return owners
}

// Reclaim returns the blocks that nobody uses any more, in no order. The slice is the caller's until the next call.
//
// Errors: [UnknownMemberError], [ErrLeft] if the producer is closed, [ErrCorrupt].
func (p *Producer) Reclaim() ([]Returned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reclaim()
}

// AwaitReclaim is [Producer.Reclaim], but waits until a block comes back, as long as the context lasts. It does not wait if the
// channel has none.
func (p *Producer) AwaitReclaim(ctx context.Context) ([]Returned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for wait := (pause{}); ; {
		back, err := p.reclaim()
		if err != nil || len(back) > 0 || len(p.pending) == p.seen && len(p.stuck) == 0 {
			p.found(&wait, len(back) > 0)
			return back, err
		}
		if err := p.rest(ctx, &wait, maxSleep); err != nil {
			p.found(&wait, false)
			return nil, err
		}
	}
}

// AwaitBack calls look until it finds what it looks for, or the context ends. look calls [Producer.Reclaim], or knows what others do with
// what came back. Between two looks the producer waits until a consumer has let go of a frame.
//
// Errors: the context's, [ErrLeft] if the producer is closed.
func (p *Producer) AwaitBack(ctx context.Context, look func() (found bool)) error {
	for wait := (pause{}); ; {
		found := look()
		p.mu.Lock()
		err := error(nil)
		switch {
		case p.closed:
			err = p.gone("is closed")
		case !found:
			err = p.rest(ctx, &wait, maxSleep)
		}
		if found || err != nil {
			p.found(&wait, found)
		}
		p.mu.Unlock()
		if found {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *Producer) reclaim() ([]Returned, error) {
	if p.closed {
		return nil, p.gone("is closed")
	}
	state := p.roster.state.Load()
	t := p.sequencer.loadTail()
	if err := p.look(t); err != nil {
		return nil, err
	}
	p.state = state
	p.returned, p.fences = p.returned[:0], p.fences[:0]
	p.sortOut(t)
	if len(p.leaving) == 0 {
		return nil, nil
	}
	// A consumer holds a frame before it looks whether the frame is still kept, and before it moves its floor over one that it
	// keeps in hand. So a frame that is not kept any more, in no span, and then in no hold, is nobody's.
	p.readSpans()
	p.readHolds()
	for _, l := range p.leaving {
		from := len(p.fences)
		if p.inUse(l.number) || !p.gather(l.number) {
			p.fences = p.fences[:from]
			p.stuck = append(p.stuck, l)
			continue
		}
		p.returned = append(p.returned, Returned{l.number, l.block, l.owner, p.fences[from:len(p.fences):len(p.fences)]})
	}
	return p.returned, nil
}

// fate says what the channel has to do with a frame.
type fate int

const (
	kept   fate = iota // as are all later ones
	taken              // later ones may have left
	leaves             // the channel needs it no more
)

// sortOut finds the frames that the channel needs no more.
func (p *Producer) sortOut(t tail) {
	limit := p.left(t)
	p.leaving = p.leaving[:0]
	stuck := p.stuck[:0]
	for _, l := range p.stuck {
		if p.fate(l.number, limit) == leaves {
			p.leaving = append(p.leaving, l)
		} else {
			stuck = append(stuck, l)
		}
	}
	for p.seen < len(p.pending) {
		l := p.pending[p.seen]
		f := p.fate(l.number, limit)
		if f == kept {
			break
		}
		p.seen++
		if f == leaves {
			p.leaving = append(p.leaving, l)
		} else {
			stuck = append(stuck, l)
		}
	}
	p.stuck = stuck
	if 2*p.seen >= len(p.pending) {
		p.pending = p.pending[:copy(p.pending, p.pending[p.seen:])]
		p.seen = 0
	}
}

// left is the greatest number of a broadcast that the channel needs no more. Frames of a queue leave one by one.
func (p *Producer) left(t tail) uint64 {
	if p.state == channelDestroyed || p.mode == Queue {
		return math.MaxUint64
	}
	limit := p.sequencer.oldest(t.number()) - 1
	ended := p.state == channelClosed
	if ended { // nobody can join: who is there must have released it
		limit = math.MaxUint64
	}
	for i := range p.view.readers {
		if r := &p.view.readers[i]; r.blocks() || ended && r.active {
			limit = min(limit, max(r.floor.Load(), 1)-1)
		}
	}
	return limit
}

func (p *Producer) fate(number, limit uint64) fate {
	switch {
	case number > limit:
		return kept
	case p.mode == Broadcast || p.state == channelDestroyed:
		return leaves
	}
	c := claim(p.sequencer.claim(number).Load())
	switch {
	case c.number() < number:
		return kept // no consumer has had it, and none has had a later one
	case c.number() > number || c.tag() == tagDone:
		return leaves
	}
	return taken
}

// readHolds collects the numbers that consumers hold.
func (p *Producer) readHolds() {
	p.held = p.held[:0]
	for i := range p.view.readers {
		c := p.view.readers[i].cursor
		for j := range c.used() {
			if n := c.holds[j].number.Load(); n != 0 {
				p.held = append(p.held, n)
			}
		}
	}
	slices.Sort(p.held)
}

// readSpans collects what consumers of a broadcast may have taken and have not released, whose floors do not count any more.
func (p *Producer) readSpans() {
	p.spans = p.spans[:0]
	if p.mode == Queue {
		return
	}
	for i := range p.view.readers {
		r := &p.view.readers[i]
		if !r.policy.blocks() || r.active && p.state != channelDestroyed {
			continue
		}
		if s := (span{r.floor.Load(), r.next.Load()}); s.floor < s.next {
			p.spans = append(p.spans, s)
		}
	}
}

// inUse says whether a consumer uses a frame that the channel needs no more.
func (p *Producer) inUse(number uint64) bool {
	for _, s := range p.spans {
		if s.floor <= number && number < s.next {
			return true
		}
	}
	_, held := slices.BinarySearch(p.held, number)
	return held
}

// gather adds the fences of the consumers' work on a frame. ok is false if one is being written.
func (p *Producer) gather(number uint64) (ok bool) {
	for i := range p.view.readers {
		r := &p.view.readers[i]
		if r.peer.Timeline == 0 {
			continue
		}
		// A later number in its place: the fence of this one is reached, or that one comes after it.
		n, t, ok := r.doneAt(number).load()
		if !ok {
			return false
		}
		if n >= number && t.Value != 0 && t.Value <= MaxValue && t.Word <= MaxWord {
			t.Timeline = r.peer.Timeline
			p.fences = append(p.fences, t)
		}
	}
	return true
}
