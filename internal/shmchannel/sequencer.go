package shmchannel

import (
	"errors"
	"sync/atomic"
)

// voidSeat is the producer seat in a tail whose number is void: no frame was published with this number.
const voidSeat = MaxProducers

// tail is the word that describes the newest frame. It has the frame's number, the seat of the frame's producer, and the low 10 bits of the
// roster's version.
type tail uint64

func newTail(number uint64, seat int, version uint64) tail {
	return tail(number<<16 | uint64(seat)<<10 | version&1023)
}

func (t tail) number() uint64  { return uint64(t) >> 16 }
func (t tail) seat() int       { return int(t >> 10 & 63) }
func (t tail) version() uint64 { return uint64(t & 1023) }

// entry is a word that says which producer published a number.
type entry uint64

func newEntry(number uint64, seat int) entry { return entry(number<<6 | uint64(seat)) }

func (e entry) number() uint64 { return uint64(e) >> 6 }
func (e entry) seat() int      { return int(e & 63) }

// claim is a word that says what has happened to a frame of a queue.
type claim uint64

// The tags of a claim. tagConsumer + i stands for the consumer in seat i.
const (
	tagRequeued = iota
	tagDone
	tagConsumer
)

func newClaim(number, tag uint64) claim { return claim(number<<12 | tag) }

func (c claim) number() uint64 { return uint64(c) >> 12 }
func (c claim) tag() uint64    { return uint64(c & 4095) }

// delivery is a word that says how often consumers have got a frame of a queue. Only the consumer with the claim on the frame writes the word.
type delivery uint64

func newDelivery(number, count uint64) delivery {
	return delivery(number<<16 | count)
}

// of returns the count of a frame: 0 if the word is of another frame.
func (d delivery) of(number uint64) uint64 {
	if uint64(d)>>16 != number {
		return 0
	}
	return uint64(d) & MaxDelivery
}

// sequencerHead is the part of a sequencer whose size does not depend on N, the number of slots.
type sequencerHead struct {
	tail      atomic.Uint64
	_         [56]byte
	published futex // consumers sleep on this futex
	_         [60]byte
	freed     futex // producers sleep on this futex
	_         [60]byte
	tickets   atomic.Uint64
	_         [56]byte
	dropped   atomic.Uint64
	_         [56]byte
	head      atomic.Uint64
	_         [56]byte
	drops     atomic.Uint64
	_         [120]byte
	waiting   [64]atomic.Uint64
	_         [HeadBytes - 1024]byte
}

// sequencer puts the frames of all producers in order. All members write it.
type sequencer struct {
	*sequencerHead
	order      []atomic.Uint64
	claims     []atomic.Uint64
	deliveries []atomic.Uint64
	geometry
}

func newSequencer(mem region, l geometry) sequencer {
	return sequencer{
		sequencerHead: at[sequencerHead](mem, 0),
		order:         list[atomic.Uint64](mem, HeadBytes, l.slots),
		claims:        list[atomic.Uint64](mem, HeadBytes+8*l.slots, l.slots),
		deliveries:    list[atomic.Uint64](mem, HeadBytes+16*l.slots, l.slots),
		geometry:      l,
	}
}

func (s *sequencer) loadTail() tail { return tail(s.tail.Load()) }

func (s *sequencer) entry(number uint64) *atomic.Uint64 { return &s.order[number&s.mask()] }
func (s *sequencer) claim(number uint64) *atomic.Uint64 { return &s.claims[number&s.mask()] }

func (s *sequencer) delivery(number uint64) *atomic.Uint64 { return &s.deliveries[number&s.mask()] }

// enter stores the entry of the number in tail t, unless another member has already stored the entry. Every producer calls enter before it
// moves the tail to the next number. So when the tail moves past the number of a frame, the entry of this number is stored. enter stores no
// entry for a void number, because the slot of the void number may still have the entry of an older frame, and the queue still needs that
// entry.
func (s *sequencer) enter(t tail) {
	if t.seat() == voidSeat || t.number() == 0 {
		return
	}
	w := s.entry(t.number())
	if old := entry(w.Load()); old.number() < t.number() {
		w.CompareAndSwap(uint64(old), uint64(newEntry(t.number(), t.seat())))
	}
}

// origin says whether a number was published.
type origin int

const (
	published origin = iota
	void             // no frame was published with this number
	passed           // the slot of this number has the entry of a later number
)

// producerOf returns the seat of the producer of a number, and whether the number was published. The number is not above the number of t.
func (s *sequencer) producerOf(number uint64, t tail) (seat int, how origin) {
	switch e := entry(s.entry(number).Load()); {
	case e.number() == number:
		seat = e.seat()
	case e.number() > number:
		return 0, passed
	case t.number() == number:
		seat = t.seat()
	default:
		return voidSeat, void
	}
	if seat == voidSeat {
		return seat, void
	}
	return seat, published
}

// Frames of a queue

// resident is the frame that lives in a slot of a queue: the newest frame of that slot. Void numbers do not count.
type resident struct {
	number uint64 // 0: the slot has no frame
	claim  claim
}

// waits reports whether the frame waits for a consumer.
func (r resident) waits() bool {
	return r.claim.number() < r.number || r.claim.number() == r.number && r.claim.tag() == tagRequeued
}

// done reports whether the slot is free for another frame.
func (r resident) done() bool {
	return r.number == 0 || r.claim.number() > r.number || r.claim.number() == r.number && r.claim.tag() == tagDone
}

// resident returns the frame in the slot of a number. The number is not above the number of t.
func (s *sequencer) resident(number uint64, t tail) resident {
	r := resident{entry(s.entry(number).Load()).number(), claim(s.claim(number).Load())}
	if r.number < number && number == t.number() && t.seat() != voidSeat {
		r.number = number // the entry of this number is not stored yet
	}
	return r
}

// errAgain means that what the caller has read of the channel is out of date: another member, or the caller itself, has moved the tail, claimed
// a frame or dropped one. The caller loads the tail and looks again; users never get this error.
var errAgain = errors.New("shmchannel: the channel has changed meanwhile")

// backlog is the result of survey.
type backlog struct {
	waiting int // number of frames that wait for a consumer
	first   resident
	open    uint64 // the smallest number whose frame is not done; the tail's number + 1 if all are done
}

// survey counts the frames of a queue that wait for a consumer, and finds the oldest of them. It may stop when it has counted `limit`
// frames; all frames that it has not counted then are newer. survey also moves the head past frames that are done. survey trusts the head:
// a member that stores a wrong head can hide frames, and surveyAll finds them.
//
// Errors: errAgain if the caller must load the tail again.
func (s *sequencer) survey(t tail, limit int) (backlog, error) {
	head := s.head.Load()
	if head > t.number()+1 {
		if head <= s.loadTail().number()+1 {
			return backlog{}, errAgain
		}
		return s.surveyAll(t, limit), nil
	}
	from := max(head, s.oldestSlot(t))
	b := s.search(t, from, limit, from > max(head, 1)) // if the head is further back, any slot may have an old frame
	if b.open > head {
		s.head.CompareAndSwap(head, b.open)
	}
	return b, nil
}

// surveyAll does what survey does, but reads every slot and does not read the head.
func (s *sequencer) surveyAll(t tail, limit int) backlog {
	return s.search(t, s.oldestSlot(t), limit, true)
}

// oldestSlot returns the first number of a search that goes through every slot that has been used.
func (s *sequencer) oldestSlot(t tail) uint64 {
	if t.number() < s.slots {
		return 1
	}
	return t.number() - s.slots + 1
}

// search goes through the slots of the numbers from `from` to the number of t. If `every` is false, search stops when it has counted `limit`
// frames that wait.
func (s *sequencer) search(t tail, from uint64, limit int, every bool) backlog {
	b := backlog{open: t.number() + 1}
	for n := from; n <= t.number() && (every || b.waiting < limit); n++ {
		r := s.resident(n, t)
		if r.number > n || r.done() {
			continue
		}
		b.open = min(b.open, r.number)
		if r.waits() {
			b.waiting++
			if b.first.number == 0 || r.number < b.first.number {
				b.first = r
			}
		}
	}
	return b
}
