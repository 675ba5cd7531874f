package streammodel

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Config is a channel with its members, small enough to be explored.
type Config struct {
	Name      string
	Capacity  int
	Slots     int // N
	Producers int
	Consumers int
	Blocks    int // of each producer
	Frames    [mostProducers]int
	Queue     bool
	Full      policy // of a queue
	Policies  [mostConsumers]policy
	Oldest    bool                // joiners begin with the oldest frame that is kept
	Leave     [mostConsumers]bool // may leave when nothing is there
	GiveBack  int                 // how often each consumer may give a frame of a queue back
	Script    []errand
	Deaths    int
	Versions  int // how many versions there are before they begin again
	Mutant    string

	Most int // states; more is a failure of the configuration
}

// Result says what was explored, and the first fault with the way to it.
type Result struct {
	States int
	Ends   int // states in which nothing is left to do
	Fault  string
	Trace  []string
}

type model struct {
	Config
	found string
}

func (m *model) n() int8 { return int8(m.Slots) }

func (m *model) block(p, own int8) int8 { return p*mostBlocks + own }

func (m *model) ownBlock(p, b int8) int8 { return b - p*mostBlocks }

func (m *model) oldestKept(tail int8) int8 { return max(1, tail-int8(m.Capacity)+1) }

func (m *model) mutant(name string) bool { return m.Mutant == name }

func (m *model) fault(format string, args ...any) {
	if m.found == "" {
		m.found = fmt.Sprintf(format, args...)
	}
}

// claimed notes the content of a number that was published.
func (m *model) claimed(s *state, n, content int8) {
	if int(n) > mostFrames {
		m.fault("number %d is beyond what a state remembers", n)
		return
	}
	s.ghost.frames[n] = content
}

func (m *model) acknowledged(s *state, n int8) {
	if s.ghost.acked[n]++; s.ghost.acked[n] > 1 {
		m.fault("frame %d is acknowledged twice", n)
	}
}

// ring moves a futex word on and wakes who sleeps on it; false if the word has changed.
func (m *model) ring(s *state, word *int8, seen int8, who sleeper) bool {
	if *word != seen {
		return false
	}
	*word = (seen | 1) + 1
	for p := range s.producers {
		if s.producers[p].sleep == who {
			s.producers[p].sleep = awake
		}
	}
	for c := range s.cons {
		if s.cons[c].sleep == who {
			s.cons[c].sleep = awake
		}
	}
	return true
}

func (m *model) start() state {
	var s state
	s.tail.producer = void
	for p := range s.producers {
		s.producers[p].pc, s.producers[p].block = pDone, -1
		if p < m.Producers {
			s.producers[p].pc = pWrite
		}
		s.producers[p].known = -1
	}
	for c := range s.cons {
		s.cons[c].pc = cDone
		if c < m.Consumers {
			s.cons[c].pc = cOutside
		}
	}
	s.service.pc = sNext
	return s
}

// actor numbers: producers, consumers, the service, and then the same again to die.
const (
	serviceActor = mostProducers + mostConsumers
	firstDeath   = serviceActor + 1
	actors       = firstDeath + mostProducers + mostConsumers
)

// next is the state after one step of an actor; false if it has none.
func (m *model) next(s *state, actor, choice int) (state, bool) {
	after := *s
	switch {
	case actor < mostProducers:
		a := &s.producers[actor]
		return after, choice == 0 && !a.dead && a.sleep == awake && m.stepProducer(&after, int8(actor))
	case actor < serviceActor:
		c := int8(actor - mostProducers)
		a := &s.cons[c]
		if choice > 1 || choice == 1 && a.pc != cAck {
			return after, false
		}
		return after, !a.dead && a.sleep == awake && m.stepConsumer(&after, c, int8(choice))
	case actor == serviceActor:
		return after, (choice == 0 || s.service.pc == sNext) && m.stepService(&after, int8(choice))
	}
	if choice > 0 || int(s.ghost.deaths) == m.Deaths {
		return after, false
	}
	after.ghost.deaths++
	if who := actor - firstDeath; who < mostProducers {
		a := &after.producers[who]
		if a.dead || a.pc == pDone || a.pc == pClosed {
			return after, false
		}
		a.dead = true
	} else {
		c := who - mostProducers
		a := &after.cons[c]
		if a.dead || a.pc == cDone || a.pc == cOutside {
			return after, false
		}
		a.dead = true
		after.ghost.uses[c] = 0
	}
	return after, true
}

type turn struct {
	state         state
	actor, choice int  // to be tried next
	moved         bool // somebody could take a step
	only          bool // no other actor's step makes a difference before this one's
	by            string
}

// Explore takes every way through the configuration, and stops at the first fault.
func Explore(c Config) Result {
	m := &model{Config: c}
	seen := make(map[[2]uint64]struct{})
	seeds := [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	hash := func(s *state) [2]uint64 {
		return [2]uint64{maphash.Comparable(seeds[0], *s), maphash.Comparable(seeds[1], *s)}
	}
	path := []turn{{state: m.start()}}
	seen[hash(&path[0].state)] = struct{}{}
	var r Result
	for len(path) > 0 {
		top := &path[len(path)-1]
		if top.actor == actors {
			path = path[:len(path)-1]
			continue
		}
		if top.actor == 0 && top.choice == 0 {
			if only, found := m.alone(&top.state); found {
				top.actor, top.only = only, true
			}
		}
		actor, choice := top.actor, top.choice
		after, ok := m.next(&top.state, actor, choice)
		if ok && actor < firstDeath {
			top.moved = true
		}
		switch top.choice++; {
		case !ok && top.only:
			top.actor = actors
		case !ok:
			top.actor, top.choice = actor+1, 0
		}
		if !ok && top.actor == firstDeath && !top.moved {
			r.Ends++
			m.end(&top.state)
		}
		by := ""
		if ok {
			by = m.describe(&top.state, actor, choice)
		}
		if m.found != "" {
			r.States, r.Fault = len(seen), m.found
			for _, t := range path[1:] {
				r.Trace = append(r.Trace, t.by)
			}
			if by != "" {
				r.Trace = append(r.Trace, by)
			}
			return r
		}
		if !ok {
			continue
		}
		h := hash(&after)
		if _, had := seen[h]; had {
			continue
		}
		seen[h] = struct{}{}
		if len(seen) > c.Most {
			r.States, r.Fault = len(seen), fmt.Sprintf("more than %d states", c.Most)
			return r
		}
		path = append(path, turn{state: after, by: by})
	}
	r.States = len(seen)
	return r
}

// alone finds an actor whose next step nobody else can see or change: then the order of that step and those of others makes no
// difference, and one order stands for all. Where consumers only block, that is what a producer does to a record that is not published,
// and what a consumer does with one that is.
func (m *model) alone(s *state) (actor int, found bool) {
	if m.Mutant != "" || m.Queue {
		return 0, false
	}
	for c := range m.Consumers {
		if m.Policies[c].drops() {
			return 0, false
		}
	}
	for p := range m.Producers {
		switch a := &s.producers[p]; a.pc {
		case pRecordClear, pRecordBlock, pRecordSeq:
			if !a.dead {
				return p, true
			}
		}
	}
	for c := range m.Consumers {
		switch a := &s.cons[c]; a.pc {
		case cSeq, cBlock, cSeqAgain:
			if !a.dead {
				return mostProducers + c, true
			}
		}
	}
	return 0, false
}

func (m *model) describe(s *state, actor, choice int) string {
	switch {
	case actor < mostProducers:
		return fmt.Sprintf("producer %d: %s", actor, s.producers[actor].pc)
	case actor < serviceActor:
		return fmt.Sprintf("consumer %d: %s", actor-mostProducers, s.cons[actor-mostProducers].pc)
	case actor == serviceActor:
		return fmt.Sprintf("service: %s (%d)", s.service.pc, choice)
	case actor < firstDeath+mostProducers:
		return fmt.Sprintf("producer %d dies", actor-firstDeath)
	}
	return fmt.Sprintf("consumer %d dies", actor-firstDeath-mostProducers)
}

// end checks a state in which nobody has anything left to do.
func (m *model) end(s *state) {
	for p := range int8(m.Producers) {
		a := &s.producers[p]
		if a.dead || a.pc == pDone || a.pc == pClosed {
			continue
		}
		if !m.held(s) {
			m.fault("producer %d sleeps for ever: %s", p, a.pc)
		}
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		if a.dead || a.pc == cDone || a.pc == cOutside {
			continue
		}
		switch {
		case s.state == closed:
			m.fault("consumer %d sleeps for ever, and the channel is closed: %s", c, a.pc)
		case !m.Queue && a.next <= s.tail.number, m.Queue && m.anyWaits(s, s.tail.number):
			m.fault("consumer %d sleeps for ever, and frames are there", c)
		}
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		if !m.Queue && !m.Policies[c].drops() && a.pc == cDone && s.state == closed && !m.Leave[c] && a.last != s.end {
			m.fault("consumer %d ended after frame %d of %d", c, a.last, s.end)
		}
	}
	if m.Queue && s.state == closed && m.aliveConsumer(s) {
		for n := int8(1); n <= s.end; n++ {
			if s.ghost.frames[n] != void && s.ghost.acked[n] != 1 {
				m.fault("frame %d was acknowledged %d times", n, s.ghost.acked[n])
			}
		}
	}
}

// held says whether there is a reason for which a producer waits: nobody is there who could take what is kept.
func (m *model) held(s *state) bool { return m.Queue && !m.aliveConsumer(s) && s.state == open }

func (m *model) aliveConsumer(s *state) bool {
	for c := range m.Consumers {
		if a := &s.cons[c]; !a.dead && (a.pc != cDone || s.state == closed) && a.pc != cOutside {
			return true
		}
	}
	return false
}

// String is the trace, a line for each step.
func (r Result) String() string { return r.Fault + "\n  " + strings.Join(r.Trace, "\n  ") }
