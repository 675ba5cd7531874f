package streammodel

import (
	"fmt"
	"hash/maphash"
	"strings"
	"unsafe"
)

// Result says how many states Explore has visited. It also has the first fault, and the steps that lead to the fault.
type Result struct {
	States int
	Ends   int // states in which no actor has a step left
	Fault  string
	Trace  []string
}

// String returns the fault and the steps to the fault, with one line for each step.
func (r Result) String() string { return r.Fault + "\n  " + strings.Join(r.Trace, "\n  ") }

type model struct {
	Config
	found string
}

func (m *model) fault(format string, args ...any) {
	if m.found == "" {
		m.found = fmt.Sprintf(format, args...)
	}
}

func (m *model) begins() state {
	var s state
	s.tail.seat = void
	for p := range s.producers {
		a := &s.producers[p]
		a.pc, a.block, a.known = pDone, -1, -1
		if p < m.Producers {
			a.pc = pOutside
			if p == 0 || !m.Heir {
				a.pc, s.producerSeats[p], s.owners[p] = pWrite, active, int8(p)
			}
		}
	}
	for c := range s.cons {
		s.cons[c].pc = cDone
		if c < m.Consumers {
			s.cons[c].pc = cOutside
		}
		if m.Joined[c] {
			s.seats[c] = active
			s.start[c], s.floor[c], s.next[c] = 1, 1, 1
			if m.Queue {
				s.start[c], s.floor[c], s.next[c] = 0, 0, 0
			}
		}
	}
	s.version = max(m.Versions-2, 0) // so that the version in the tail wraps around
	s.tail.version = s.version % m.Versions
	s.service.pc = sNext
	return s
}

// The numbers of the actors: producers, consumers, the consumers' GPUs, and the service. The numbers from firstDeath on stand for the
// deaths of the members.
const (
	firstConsumer = mostProducers
	firstGPU      = firstConsumer + mostConsumers
	serviceActor  = firstGPU + mostConsumers
	firstDeath    = serviceActor + 1
	actors        = firstDeath + mostProducers + mostConsumers
)

// step takes the next step of an actor. It returns false if the actor has no step, or if the step does not have this choice.
func (m *model) step(s *state, actor, choice int) bool {
	switch {
	case actor < firstConsumer:
		a := &s.producers[actor]
		return !a.dead && a.sleep.on == none && m.stepProducer(s, int8(actor), choice)
	case actor < firstGPU:
		c := actor - firstConsumer
		a := &s.cons[c]
		return choice < 2 && !a.dead && a.sleep.on == none && m.stepConsumer(s, int8(c), choice)
	case actor < serviceActor:
		return m.GPU && choice < 2 && m.stepGPU(s, int8(actor-firstGPU), int8(choice))
	case actor == serviceActor:
		return (choice == 0 || s.service.pc == sNext) && m.stepService(s, choice)
	}
	return choice == 0 && m.die(s, actor-firstDeath)
}

// more says whether an actor may have choice 1 although it does not have choice 0.
func more(actor, choice int) bool {
	return choice == 0 && actor >= firstConsumer && actor < serviceActor
}

// die ends the process of a member.
func (m *model) die(s *state, who int) bool {
	if int(s.ghost.deaths) >= m.Deaths {
		return false
	}
	s.ghost.deaths++
	if who < mostProducers {
		a := &s.producers[who]
		if a.dead || a.pc == pOutside || a.pc == pDone && !m.Heir && !m.Drain {
			return false
		}
		*a = producer{pc: pDone, dead: true, block: -1, known: -1}
		return true
	}
	c := who - mostProducers
	a := &s.cons[c]
	if a.dead || a.pc == cOutside || a.pc == cDone {
		return false
	}
	*a = consumer{pc: cDone, dead: true, last: a.last, reached: [2]int8{a.issued, a.issued}, issued: a.issued}
	s.ghost.uses[c], s.ghost.mine[c] = 0, 0
	s.ghost.gpu[c] = [mostFrames]int8{}
	return true
}

// turn is a state on the current path, with the actor and the choice that Explore tries next from this state.
type turn struct {
	state         state
	actor, choice int
	by, chosen    int  // the actor and the choice of the step that led to this state
	moved         bool // an actor could take a step in this state
	alone         bool // Explore tries only the steps of this actor
}

// Explore explores every path of the configuration, and stops at the first fault. It remembers a visited state by a hash of
// 64 bits. The probability that two of ten million states have the same hash is less than one in 100,000.
func Explore(c Config) Result {
	m := &model{Config: c}
	seen := set{words: make([]uint64, 1<<10)}
	seed := maphash.MakeSeed()
	path := []turn{{state: m.begins()}}
	seen.add(hash(seed, &path[0].state))
	var r Result
	for len(path) > 0 && m.found == "" {
		top := &path[len(path)-1]
		if top.actor == 0 && top.choice == 0 && !top.alone {
			top.actor, top.alone = m.alone(&top.state)
		}
		if top.actor == actors {
			path = path[:len(path)-1]
			continue
		}
		actor, choice := top.actor, top.choice
		if actor == firstDeath && !top.moved && choice == 0 && !top.alone {
			r.Ends++
			m.end(&top.state)
			if m.found != "" {
				break
			}
		}
		path = append(path, turn{state: top.state, by: actor, chosen: choice})
		top = &path[len(path)-2]
		after := &path[len(path)-1].state
		ok := m.step(after, actor, choice)
		top.choice++
		top.moved = top.moved || ok
		if !ok && !more(actor, choice) {
			top.actor, top.choice = actor+1, 0
			if top.alone {
				top.actor = actors
			}
		}
		if m.found != "" {
			break
		}
		if ok && m.Mutant != "a futex word is moved on by a store" {
			m.settleWords(after)
		}
		if !ok || !seen.add(hash(seed, after)) {
			path = path[:len(path)-1]
			continue
		}
		if seen.count > c.Most {
			m.fault("more than %d states", c.Most)
			path = path[:1]
		}
	}
	r.States, r.Fault = seen.count, m.found
	if m.found != "" {
		for i := range path[:len(path)-1] {
			r.Trace = append(r.Trace, describe(&path[i].state, path[i+1].by, path[i+1].chosen))
		}
	}
	return r
}

func hash(seed maphash.Seed, s *state) uint64 {
	return maphash.Bytes(seed, (*[unsafe.Sizeof(*s)]byte)(unsafe.Pointer(s))[:])
}

// set is a set of words.
type set struct {
	words []uint64 // 0: an empty place
	count int
}

// add adds a word, and says whether the word is new.
func (s *set) add(w uint64) bool {
	w |= 1 << 63
	mask := uint64(len(s.words) - 1)
	i := w & mask
	for ; s.words[i] != 0; i = (i + 1) & mask {
		if s.words[i] == w {
			return false
		}
	}
	s.words[i] = w
	if s.count++; 2*s.count > len(s.words) {
		old := s.words
		*s = set{words: make([]uint64, 4*len(old))}
		for _, w := range old {
			if w != 0 {
				s.add(w)
			}
		}
	}
	return true
}

// alone finds an actor whose next step does not affect the steps of other actors and does not depend on them. Explore
// takes such a step at once, and does not try the steps of other actors before it, because the order makes no
// difference. An actor has only a few such steps in a row, so every actor gets its turn. A death before such steps has
// the same effect as a death after them. These are the steps:
//
//   - A producer writes into a free block, or into the record of a number that is not published, and no consumer is about to
//     read an older number in the slot of the record. No other producer writes the records of this producer. (If a consumer still used the
//     block, Explore would find the fault in any order: a consumer that begins after the write reads wrong content, and the producer's step
//     detects a consumer that has begun before.)
//   - A consumer reads from a frame that cannot be dropped: no member changes the frame until the consumer releases it. (If a member
//     changed the frame, the previous step of the consumer would find that fault too. The previous step is not
//     in this list.)
//   - A member reads the roster when the service has nothing left to do and no member can die or leave. At such a moment, this list also
//     includes the step in which a consumer stores the number that it takes next, because other members read this number only when the
//     consumer leaves.
//   - A consumer reads a futex word before it wakes members, and no member will sleep on this word again.
func (m *model) alone(s *state) (actor int, found bool) {
	quiet := m.quiet(s)
	for p := range int8(m.Producers) {
		a := &s.producers[p]
		if a.dead || a.sleep.on != none {
			continue
		}
		alone := false
		switch a.pc {
		case pWrite:
			alone = !m.GPU && (quiet || a.block >= 0 || int(a.written) < m.Frames[p] && m.hasBlock(a))
		case pRecordClear, pRecordBlock, pRecordSeq:
			alone = m.nobodyReads(s, (a.tail.number+1)%m.n())
		case pVersion, pBackVersion, pBackVersionAgain, pSeats, pBackSeats, pBackSeatsAgain, pBackState:
			alone = quiet
		}
		if alone {
			return int(p), true
		}
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		if a.dead || a.sleep.on != none {
			continue
		}
		alone := false
		keeps := m.Queue || !m.Policies[c].drops()
		switch a.pc {
		case cEntry, cSeq, cBlock, cSeqAgain:
			alone = keeps
		case cNext:
			alone = m.Queue || quiet && keeps
		case cOwn, cEnding:
			alone = quiet
		case cWake:
			alone = a.wakes&published == 0 && m.nobodyPublishes(s)
		}
		if alone {
			return firstConsumer + int(c), true
		}
	}
	return 0, false
}

func (m *model) hasBlock(a *producer) bool {
	for b := range m.Blocks {
		if a.flying[b] == 0 {
			return true
		}
	}
	return false
}

// nobodyReads returns true if no consumer reads a record in the slot. It checks only consumers that drop frames, because
// producers wait for all other consumers.
func (m *model) nobodyReads(s *state, slot int8) bool {
	for c := range m.Consumers {
		a := &s.cons[c]
		if !m.Queue && m.Policies[c].drops() && !a.dead && a.n > 0 && a.n%m.n() == slot && a.pc >= cUsed && a.pc <= cOutrun {
			return false
		}
	}
	return true
}

func (m *model) nobodyPublishes(s *state) bool {
	for p := range m.Producers {
		if a := &s.producers[p]; !a.dead && a.pc != pDone {
			return false
		}
	}
	return true
}

// quiet says whether the roster cannot change any more.
func (m *model) quiet(s *state) bool {
	if s.service.pc != sNext || int(s.service.step) < len(m.Script) || m.Deaths > 0 {
		return false
	}
	for c := range m.Consumers {
		if m.Leave[c] && (!s.cons[c].said || s.seats[c] != free) {
			return false
		}
	}
	return true
}

// describe returns a text that says what an actor did.
func describe(s *state, actor, choice int) string {
	switch {
	case actor < firstConsumer:
		return fmt.Sprintf("producer %d %v", actor, s.producers[actor].pc)
	case actor < firstGPU:
		return fmt.Sprintf("consumer %d %v (choice %d)", actor-firstConsumer, s.cons[actor-firstConsumer].pc, choice)
	case actor < serviceActor:
		return fmt.Sprintf("the GPU of consumer %d ends work on word %d", actor-firstGPU, choice)
	case actor == serviceActor:
		return fmt.Sprintf("the service %v (task %d)", s.service.pc, choice)
	case actor < firstDeath+mostProducers:
		return fmt.Sprintf("producer %d dies", actor-firstDeath)
	}
	return fmt.Sprintf("consumer %d dies", actor-firstDeath-mostProducers)
}
