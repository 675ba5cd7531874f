package shmchannel

import (
	"math"
	"time"
)

// full says whether the channel is full, and why.
type full struct {
	is        bool
	fails     bool // Publish must fail and not wait, because a policy is Fail
	number    uint64
	reader    *reader // in a broadcast: the consumer with the smallest floor
	floor     uint64
	waiting   int           // in a queue: number of frames that wait for a consumer
	consumers int           // if `waiting` is not 0: number of consumers of the queue
	turn      time.Duration // if not 0: there is room, but another producer may go first for this time
}

func (f full) error() error {
	e := &FullError{Number: f.number, Waiting: f.waiting, Consumers: f.consumers, Floor: f.floor}
	if f.reader != nil {
		e.Consumer = f.reader.peer
	}
	return e
}

// limit returns how long the producer sleeps at most before it looks for room again.
func (f full) limit() time.Duration {
	if f.turn > 0 {
		return f.turn
	}
	return maxSleep
}

// room returns a `full` that says whether the channel has room for frame n. n is the number in tail t plus 1. If the channel is a full
// queue whose policy is DropOldest or Latest, room drops a frame and returns errAgain.
//
// Errors: [ErrCorrupt]; errAgain if the caller must load the tail again.
func (p *Producer) room(t tail, n uint64) (full, error) {
	if p.mode == Queue {
		return p.roomInQueue(t, n)
	}
	return p.roomInBroadcast(n), nil
}

// roomInBroadcast does what room does, for a broadcast. When a producer publishes frame n, the broadcast stops keeping frame n − capacity.
// So there is room for frame n if every consumer with the policy Block or Fail has released or passed frame n − capacity and all older
// frames.
func (p *Producer) roomInBroadcast(n uint64) full {
	if n <= p.capacity || p.floor > n-p.capacity {
		return full{}
	}
	leaves := n - p.capacity
	f := full{number: n}
	p.floor = math.MaxUint64
	for i := range p.view.readers {
		r := &p.view.readers[i]
		if !r.blocks() {
			continue
		}
		floor := r.floor.Load()
		f.fails = f.fails || r.policy == Fail && floor <= leaves
		if floor < p.floor {
			p.floor, f.floor, f.reader = floor, floor, r
		}
	}
	f.is = p.floor <= leaves
	return f
}

func (p *Producer) roomInQueue(t tail, n uint64) (full, error) {
	s := &p.sequencer
	capacity := p.capacity
	if p.policy == Latest {
		capacity = 1
	}
	// No frame before the head of the queue waits for a consumer, so at most n − head frames wait. If n − head is below the capacity, the
	// queue is not full, and roomInQueue need not count the frames that wait.
	if head := s.head.Load(); head > n || n-head >= capacity {
		b, err := s.survey(t, int(capacity))
		if err != nil {
			return full{}, err
		}
		if b.waiting >= int(capacity) {
			if p.policy.blocks() {
				f := full{is: true, number: n, waiting: b.waiting, fails: p.policy == Fail}
				for i := range p.view.readers {
					if p.view.readers[i].active {
						f.consumers++
					}
				}
				return f, nil
			}
			return full{}, p.drop(b)
		}
	}
	switch r := s.resident(n, t); {
	case r.number < n && r.done():
		return full{}, nil
	case r.number < n:
		return p.skip(t, n)
	case s.loadTail() == t:
		return full{}, corrupt("frame %d has an entry, and the newest is %d", r.number, t.number())
	}
	return full{}, errAgain
}

// drop acknowledges the frame that has waited longest, so that no consumer gets it. drop returns errAgain, so that the caller looks for
// room again.
func (p *Producer) drop(b backlog) error {
	s, first := &p.sequencer, b.first
	if s.claim(first.number).CompareAndSwap(uint64(first.claim), uint64(newClaim(first.number, tagDone))) {
		s.dropped.Add(1)
		s.drops.Add(1)
		s.freed.wake() // the producer of the dropped frame can get the frame's block back
	}
	return errAgain
}

// The caller calls skip if the slot of number n still has another frame. If any other slot is free, skip makes n a void number: no frame
// gets this number. If no slot is free and the policy is DropOldest or Latest, skip drops the frame that has waited longest, if a frame
// waits. In both cases, skip returns errAgain. Otherwise the result says that the channel is full.
func (p *Producer) skip(t tail, n uint64) (full, error) {
	s := &p.sequencer
	for i := range p.slots {
		if s.resident(n+i, t).done() {
			s.tail.CompareAndSwap(uint64(t), uint64(newTail(n, voidSeat, t.version())))
			return full{}, errAgain
		}
	}
	if !p.policy.blocks() {
		if b, err := s.survey(t, 1); err != nil || b.waiting > 0 {
			if err == nil {
				err = p.drop(b)
			}
			return full{}, err
		}
	}
	return full{is: true, number: n, fails: p.policy == Fail}, nil
}

// turn is what a producer knows of the other producers that wait for room.
type turn struct {
	passed [MaxProducers]uint64 // by seat: the ticket of a producer that could have gone first, but did not publish in time
	seat   int
	ticket uint64
	since  time.Time
	yields int // how many tickets this producer has let go first since its last frame

	patience time.Duration // how long this producer lets another producer go first
}

// takeTurn takes a ticket if the producer does not have a ticket yet. The ticket shows other producers that this producer waits for room.
// takeTurn returns the ticket.
func (p *Producer) takeTurn(ticket uint64) uint64 {
	if ticket == 0 {
		ticket = p.sequencer.tickets.Add(1)
		p.sequencer.waiting[p.seat].Store(ticket)
	}
	return ticket
}

// endTurn gives the producer's ticket up, and wakes the other producers, so that the next one looks for room.
func (p *Producer) endTurn(ticket uint64) {
	if ticket != 0 && !p.closed {
		p.sequencer.waiting[p.seat].Store(0)
		p.sequencer.freed.wake()
	}
}

// othersFirst returns a `full` whose field `is` is true if another producer must publish first. ticket is this producer's ticket, or 0 if
// this producer has no ticket.
func (p *Producer) othersFirst(n, ticket uint64) full {
	for {
		seat, first := 0, ticket
		for _, i := range p.view.others {
			w := p.sequencer.waiting[i].Load()
			if w != 0 && w != p.turn.passed[i] && (first == 0 || w < first) {
				seat, first = i, w
			}
		}
		if first == ticket {
			return full{}
		}
		now := time.Now()
		if p.turn.seat != seat || p.turn.ticket != first {
			// Each other producer has one ticket. So a producer that goes on showing new tickets cannot hold this producer up for ever.
			if p.turn.yields++; p.turn.yields > MaxProducers {
				return full{}
			}
			p.turn.seat, p.turn.ticket, p.turn.since = seat, first, now
		}
		if left := p.turn.patience - now.Sub(p.turn.since); left > 0 {
			return full{is: true, number: n, turn: left}
		}
		p.turn.passed[seat] = first
	}
}
