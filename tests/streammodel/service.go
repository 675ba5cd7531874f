package streammodel

// A task is work of the service: a task from the script of a configuration, or work for a member that left or died. The
// service finishes a task before it begins the next task.
type task struct {
	kind taskKind
	who  int8 // number of the consumer or of the producer
}

type taskKind int8

const (
	join taskKind = iota
	joinProducer
	expel // the session of a consumer ends, and the process of the consumer continues
	closeChannel
	destroy
	otherChange    // a change by a member that the model leaves out
	consumerLeaves // the consumer has left by itself, or is dead
	consumerFree   // the seat of the consumer is not needed any more
	producerLeaves
	producerFree
	giveUp         // the seat of a dead producer becomes free although the channel keeps frames of the producer
	producerBlocks // the blocks of a dead producer that nobody needs become free
)

// joining says whether a member is joining at this moment.
func (v *service) joining(s *state) bool {
	switch v.pc {
	case sJoinTail, sJoinStart, sActive, sJoinSwap:
		return true
	}
	return v.then == sJoinSwap
}

// tasks returns the tasks that the service could begin now. The next task of the script may begin at any moment.
func (m *model) tasks(s *state) (found [8]task, n int) {
	add := func(kind taskKind, who int8) { found[n], n = task{kind, who}, n+1 }
	if step := int(s.service.step); step < len(m.Script) {
		e := m.Script[step]
		if e.kind != joinProducer || s.producerSeats[m.seatOf(e.who)] == free || s.state != open {
			add(e.kind, e.who)
		}
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		switch {
		case s.seats[c] == active && (a.said || a.dead):
			add(consumerLeaves, c)
		case s.seats[c] == left && (a.dead || a.said && !m.needed(s, c)):
			add(consumerFree, c)
		}
	}
	for p := range int8(m.Producers) {
		if !s.producers[p].dead {
			continue
		}
		seat := m.seatOf(p)
		switch mine := s.owners[seat] == p; {
		case mine && s.producerSeats[seat] == active:
			add(producerLeaves, p)
		case mine && m.Heir && s.producerSeats[seat] == left && (m.lastKept(s, p) == 0 || m.mutant("the seat of a producer is free at once")):
			add(producerFree, p)
		case mine && m.GivesUp && s.producerSeats[seat] == left && s.state == open && m.lastKept(s, p) < m.ahead(s):
			add(giveUp, p)
		case m.Drain && (!mine || s.producerSeats[seat] != active) && !s.service.freed[p]:
			add(producerBlocks, p)
		}
	}
	return found, n
}

// needed says whether the seat of a consumer that has left by itself is still needed.
func (m *model) needed(s *state, c int8) bool {
	if m.mutant("the seat of a consumer is free at once") {
		return false
	}
	if s.hold[c] > 0 || !m.holds(c) && s.floor[c] < s.next[c] {
		return true
	}
	for _, d := range s.done[c] {
		if d.number == 0 && d.value > 0 || d.value > s.cons[c].reached[word(d.value)] {
			return true
		}
	}
	return false
}

// kept says whether consumers may still take a frame that is in the block of a producer.
func (m *model) kept(s *state, p, b int8) bool {
	return m.lastOf(s, p, b) > 0
}

// lastKept returns the number of the newest frame of a producer that the channel keeps; 0: the channel keeps none.
func (m *model) lastKept(s *state, p int8) (last int8) {
	for b := range int8(m.Blocks) {
		last = max(last, m.lastOf(s, p, b))
	}
	return last
}

// ahead returns the smallest number that an active consumer has not released yet.
func (m *model) ahead(s *state) int8 {
	ahead := int8(mostFrames)
	for c := range m.Consumers {
		if s.seats[c] == active && !m.mutant("frames are given up that nobody has released") {
			ahead = min(ahead, s.floor[c])
		}
	}
	return ahead
}

// lastOf returns the number of the newest frame in a block of a producer that consumers may still take; 0: there is
// none.
func (m *model) lastOf(s *state, p, b int8) (last int8) {
	from := max(m.oldestKept(s.tail.number), s.first)
	if m.Queue {
		from = max(1, s.tail.number-m.n()+1)
	}
	if s.state == closed && !m.Queue {
		from = max(from, m.ahead(s))
	}
	for n := from; n <= s.tail.number && s.state != destroyed; n++ {
		number, k := m.resident(s, n, s.tail)
		if m.Queue && m.isDone(number, k) || number == 0 {
			continue
		}
		seat := s.order[n%m.n()].seat
		if number > s.order[n%m.n()].number {
			seat = s.tail.seat
		}
		if seat == m.seatOf(p) && s.owners[seat] == p && s.records[p][number%m.n()].block == p*mostBlocks+b {
			last = max(last, number)
		}
	}
	return last
}

// stepService takes the next step of the service. choice is the index of the task that the service begins.
func (m *model) stepService(s *state, choice int) bool {
	v := &s.service
	switch v.pc {
	case sNext:
		todo, n := m.tasks(s)
		if choice >= n {
			return false
		}
		m.task(s, todo[choice])
		return m.stepService(s, 0)
	case sJoinTail:
		v.tail, v.pc = s.tail, sJoinStart
	case sJoinStart:
		start := m.first(s, v.tail.number)
		if m.mutant("a joiner begins with a frame that was given up") {
			start = m.oldestKept(v.tail.number)
		}
		if m.mutant("a joiner begins after the newest frame") {
			start = v.tail.number + 1
		}
		if !m.Queue {
			s.floor[v.who], s.next[v.who], s.start[v.who] = start, start, start
		}
		v.pc = sJoinSwap
		if s.seats[v.who] != active {
			v.pc = sActive
		}
	case sActive:
		s.seats[v.who] = active
		v.then, v.pc = sJoinSwap, sVersion
	case sVersion:
		s.version++
		v.pc = v.then
		v.then = sNext
	case sJoinSwap:
		switch {
		case s.tail == v.tail, m.mutant("a joiner does not look again"):
			m.joined(s, v)
		default:
			v.tail, v.pc = tail{}, sJoinTail
		}
	case sSwap:
		if s.state < closed {
			s.tail.version = s.version % m.Versions
		}
		v.pc = sPublished
		if s.state == closing {
			v.pc = sClosed
		}
	case sPublished:
		if !m.mutant("the service wakes nobody") {
			m.advance(s, published)
		}
		v.pc = sFreed
	case sFreed:
		if !m.mutant("the service wakes nobody") {
			m.advance(s, freed)
		}
		v.pc, v.who = sNext, 0
	case sLeft:
		s.seats[v.who] = left
		v.then, v.pc = sSwap, sVersion
	case sFree:
		s.seats[v.who] = free
		v.then, v.pc = sSwap, sVersion
	case sClosing:
		s.state = closing
		v.then, v.pc = sSwap, sVersion
		if m.mutant("the end is taken before the version is in the tail") {
			s.end, s.state = s.tail.number, closed
		}
	case sClosed:
		s.end, s.state = s.tail.number, closed
		v.then, v.pc = sSwap, sVersion
	case sDestroy:
		s.state = destroyed
		v.then, v.pc = sSwap, sVersion
	case sClaims:
		if k := &s.claims[v.i]; k.tag == claimedBy+v.who && k.number > 0 && !m.mutant("the claims of the dead are not requeued") {
			k.tag = givenBack
		}
		if v.i++; v.i == m.n() {
			v.i, v.pc = 0, sFree
		}
	case sProducerLeft:
		s.producerSeats[m.seatOf(v.who)] = left
		s.waiting[v.who] = 0
		v.then, v.pc = sSwap, sVersion
	case sProducerFree:
		s.producerSeats[m.seatOf(v.who)] = free
		v.then, v.pc = sSwap, sVersion
	case sKept, sHolds, sBlocks:
		m.stepBlocks(s, v)
	}
	return true
}

// joined makes a consumer join, in a single step.
func (m *model) joined(s *state, v *service) {
	if want := m.first(s, s.tail.number); !m.Queue && s.start[v.who] != want {
		m.fault("consumer %d begins with frame %d, and was promised %d", v.who, s.start[v.who], want)
	}
	if s.state == open {
		s.tail.version = s.version % m.Versions
	}
	v.tail, v.pc = tail{}, sFreed
}

// stepBlocks finds the blocks of a dead producer that can become free.
func (m *model) stepBlocks(s *state, v *service) {
	switch v.pc {
	case sKept:
		for b := range int8(m.Blocks) {
			v.keeps[b] = m.kept(s, v.who, b) && !m.mutant("what the channel keeps of the dead is not looked at")
		}
		v.i, v.pc = 0, sHolds
	case sHolds:
		c := v.i
		for n := s.floor[c]; !m.holds(c) && s.seats[c] != free && n < s.next[c] && (s.seats[c] == left || s.state == destroyed); n++ {
			m.keep(s, v, n)
		}
		if n := s.hold[c]; n > 0 && s.seats[c] != free && !m.mutant("what consumers have of the dead is not looked at") {
			m.keep(s, v, n)
		}
		if v.i++; int(v.i) == m.Consumers {
			v.i, v.pc = 0, sBlocks
		}
	case sBlocks:
		for b := range int8(m.Blocks) {
			if at := v.who*mostBlocks + b; !v.keeps[b] && s.content[at] > 0 {
				m.unused(s, at, "service for producer", v.who)
				s.content[at] = 0
			}
		}
		v.keeps = [mostBlocks]bool{}
		v.pc = sNext
		// In the model, the service does this task only once for each dead producer.
		v.freed[v.who] = true
	}
}

// keep marks the blocks that may contain the frame n, so that these blocks do not become free.
func (m *model) keep(s *state, v *service, n int8) {
	for b := range int8(m.Blocks) {
		r := s.records[v.who][n%m.n()]
		v.keeps[b] = v.keeps[b] || r.seq != n || r.block == v.who*mostBlocks+b
	}
}

func (m *model) task(s *state, e task) {
	v := &s.service
	v.who = e.who
	switch e.kind {
	case join:
		v.step++
		v.pc = sJoinTail
		if s.state != open && (!m.Queue || s.state != closed || m.mutant("nobody joins a closed queue")) {
			v.pc = sFreed
		}
	case joinProducer:
		v.step++
		seat := m.seatOf(e.who)
		v.then, v.pc = sSwap, sVersion
		if s.state == open {
			s.producerSeats[seat], s.owners[seat] = active, e.who
		} else {
			v.then, v.pc = sNext, sFreed
		}
	case expel:
		v.step++
		v.pc = sLeft
	case closeChannel:
		v.step++
		v.pc = sClosing
	case otherChange:
		v.step++
		v.then, v.pc = sSwap, sVersion
	case destroy:
		v.step++
		v.pc = sDestroy
	case consumerLeaves:
		v.pc = sLeft
	case consumerFree:
		v.pc = sFree
		if m.Queue {
			v.pc = sClaims
		}
	case producerLeaves:
		v.pc = sProducerLeft
	case giveUp:
		s.first = m.lastKept(s, e.who) + 1
		v.pc = sProducerFree
	case producerFree:
		v.pc = sProducerFree
	case producerBlocks:
		v.pc = sKept
	}
}
