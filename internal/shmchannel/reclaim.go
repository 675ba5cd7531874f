package shmchannel

import (
	"context"
	"math"
	"slices"
)

// Returned is the memory of a frame that its producer can use again: a block, or a chunk of an arena. Owner says which chunk.
type Returned struct {
	Number uint64 // number of the frame
	Block  uint64
	Owner  any // Owner of the record
	// Fences say when the consumers' work on the frame is done. All these fences must be reached before the producer writes the memory again.
	Fences []Fence
}

// inFlight is a frame whose memory the producer has not got back.
type inFlight struct {
	number, block uint64
	owner         any
}

// span is a range of numbers, from floor to next − 1.
type span struct{ floor, next uint64 }

// lent has the frames of a producer whose memory it has not got back.
type lent struct {
	state   uint64     // state of the channel, as loaded by the last reclaim
	pending []inFlight // published frames, in order
	seen    int        // length of the part of `pending` that sortOut has moved to `stuck` or `leaving`
	stuck   []inFlight // frames whose memory could not go back at the last reclaim
	leaving []inFlight // frames that the channel does not need any more; consumers may still use them
	spans   []span
	held    []uint64 // numbers in the consumers' holds

	returned []Returned
	fences   []Fence
}

// Outstanding returns how many frames the producer has published whose memory Reclaim has not returned yet.
func (p *Producer) Outstanding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inChannel()
}

func (p *Producer) inChannel() int { return len(p.pending) - p.seen + len(p.stuck) }

// Forget makes the producer forget all frames whose memory it has not got back, and returns the owners of this memory. Reclaim will not
// return it.
func (p *Producer) Forget() (owners []any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range slices.Concat(p.pending[p.seen:], p.stuck) {
		owners = append(owners, l.owner)
	}
	p.pending, p.stuck, p.seen = nil, nil, 0
	return owners
}

// Reclaim returns the memory that nobody uses any more, in no particular order. The returned slice is valid until the next call of Reclaim.
//
// Errors: [UnknownMemberError], [ErrLeft] if the producer is closed, [ErrCorrupt].
func (p *Producer) Reclaim() ([]Returned, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reclaim()
}

// AwaitBack calls the function `look` again and again until `look` returns true or the context ends. Between two calls of `look`, AwaitBack
// waits until a consumer releases a frame, but not longer than 100 ms. `look` may call [Producer.Reclaim], or check whether another
// goroutine has reclaimed what the caller waits for.
//
// Errors: the context's error; [ErrLeft] if the producer is closed.
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
	if err := p.refreshView(t); err != nil {
		return nil, err
	}
	p.state = state
	return p.sortReturned(t)
}

// sortReturned returns the memory that nobody uses any more. The caller has loaded p.state and then the tail t, and has called look.
func (p *Producer) sortReturned(t tail) ([]Returned, error) {
	p.returned, p.fences = p.returned[:0], p.fences[:0]
	p.sortOut(t)
	if len(p.leaving) == 0 {
		return nil, nil
	}
	if p.mode == Queue { // a consumer that joined after the call of look may have acknowledged a frame and still have the frame in hand
		if err := p.refreshView(p.sequencer.loadTail()); err != nil {
			p.stuck = append(p.stuck, p.leaving...)
			return nil, err
		}
	}
	// A consumer stores its hold before it checks that the channel still keeps the frame. A consumer also stores a hold before it moves its
	// floor past a frame that it has in hand. The producer first reads the spans, which begin at the floors, and then the holds. So if the
	// channel does not keep a frame, and the frame is in no span and in no hold, then no consumer uses the frame.
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

// fate says whether the channel still needs a frame.
type fate int

const (
	kept   fate = iota // the channel keeps this frame and all later frames
	taken              // a consumer of a queue has this frame; perhaps the channel does not need later frames any more
	leaves             // the channel does not need this frame any more
)

// sortOut checks the frames in p.pending and p.stuck. If the channel does not need a frame any more, sortOut moves the frame to p.leaving.
// If a consumer of a queue still has a frame, sortOut moves the frame from p.pending to p.stuck, and goes on with later frames: perhaps the
// channel does not need them any more. At the first frame of p.pending that the channel keeps, sortOut stops.
func (p *Producer) sortOut(t tail) {
	limit := p.newestUnneeded(t)
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

// newestUnneeded returns the number of the newest frame of a broadcast that the channel does not need any more. The channel does not need
// older frames either. If the channel is destroyed, it needs no frame, and the result is the greatest uint64. So it is for a queue, because
// the method fate decides for each frame separately.
func (p *Producer) newestUnneeded(t tail) uint64 {
	if p.state == channelDestroyed || p.mode == Queue {
		return math.MaxUint64
	}
	limit := p.sequencer.oldest(t.number()) - 1
	ended := p.state == channelClosed
	if ended { // no consumer can join any more, so only the floors of active consumers count
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
		return kept // no consumer has had this frame or a later frame of the same slot
	case c.number() > number || c.tag() == tagDone:
		return leaves
	}
	return taken
}

// readHolds collects the numbers in the holds of consumers.
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

// readSpans collects the frames of a broadcast that consumers may have taken and not released. It reads the files of consumers with the
// policy Block or Fail: only of those that left, or of all of them if the channel is destroyed. These are the consumers whose floors
// newestUnneeded does not use.
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

// inUse reports whether a consumer still uses a frame that the channel does not need any more.
func (p *Producer) inUse(number uint64) bool {
	for _, s := range p.spans {
		if s.floor <= number && number < s.next {
			return true
		}
	}
	_, held := slices.BinarySearch(p.held, number)
	return held
}

// gather adds the fences of the consumers' work on a frame. ok is false if a consumer is writing a fence at this moment.
func (p *Producer) gather(number uint64) (ok bool) {
	for i := range p.view.readers {
		r := &p.view.readers[i]
		if r.peer.Timeline == 0 {
			continue
		}
		// The consumer's entry for this slot may have the fence of a later frame. If so, the fence of this frame is already reached, or it is
		// reached no later than the fence in the entry.
		n, t, ok := r.doneAt(number).load()
		if !ok {
			return false
		}
		if n >= number && t.Value != 0 && t.Value <= MaxFenceValue && t.Word <= MaxWord {
			t.Timeline = r.peer.Timeline
			p.fences = append(p.fences, t)
		}
	}
	return true
}
