package streammodel

// stepProducer takes the next step of a producer. It returns false if the producer has no step, or if the step does not have this choice.
func (m *model) stepProducer(s *state, p int8, choice int) bool {
	a := &s.producers[p]
	if choice > 1 || choice > 0 && a.pc != pTurn {
		return false
	}
	switch a.pc {
	case pOutside:
		if s.producerSeats[m.seatOf(p)] != active || s.owners[m.seatOf(p)] != p || s.service.joining(s) {
			return false
		}
		a.pc = pWrite
		return m.write(s, p, a)
	case pWrite:
		return m.write(s, p, a)
	case pTail:
		a.tail, a.pc = s.tail, pVersion
	case pVersion:
		switch {
		case s.state != open:
			a.sleep, a.tail = sleeper{}, tail{}
			a.block, a.written, a.pc = -1, int8(m.Frames[p]), pWake
			m.endTurn(a)
		case !m.knows(s, a, open):
			a.known, a.pc = s.version, pSeats
		default:
			a.pc = pHelp
		}
	case pSeats, pBackSeats, pBackSeatsAgain:
		a.view = s.seats
		a.pc--
	case pHelp:
		if !m.mutant("nobody helps") {
			m.enter(s, a.tail)
		}
		a.pc = pRoom
		if m.Queue {
			a.survey, a.pc = m.walk(s, a.tail), pSurvey
		}
		if m.mutant("the entry is stored before the swap") {
			m.enter(s, tail{a.tail.number + 1, m.seatOf(p), 0})
		}
	case pRoom:
		if m.roomInBroadcast(s, a) {
			m.goOn(a)
		} else {
			m.rest(a)
		}
	case pSurvey, pDrop, pResident, pSkip, pVoid:
		m.stepQueue(s, p, a)
	case pTurn:
		return m.turn(s, p, a, choice)
	case pTicket:
		s.tickets++
		s.waiting[p], a.ticket = s.tickets, s.tickets
		m.rest(a)
	case pRecordClear:
		if !m.mutant("seq is not 0 while the record is written") {
			m.record(s, p).seq = 0
		}
		a.pc = pRecordBlock
	case pRecordBlock:
		m.record(s, p).block = a.block
		a.pc = pRecordSeq
	case pRecordSeq:
		m.record(s, p).seq = a.tail.number + 1
		a.pc = pSwap
	case pSwap:
		m.publish(s, p, a)
	case pEntry:
		m.enter(s, tail{a.tail.number, m.seatOf(p), 0})
		a.tail = tail{}
		a.wakes, a.pc = published, pWake
		if !m.Queue && m.Producers > 1 && !m.mutant("publishing wakes no producer") {
			a.wakes = both
		}
		if m.mutant("nobody is woken for a frame") {
			a.wakes &^= published
		}
	case pEndTurn:
		s.waiting[p], a.ticket = 0, 0
		a.pc, a.wakes = pWake, freed
		if m.mutant("nobody is woken at the end of a turn") {
			a.wakes = none
		}
	case pWake, pWoken:
		a.pc = m.wake(s, &a.wakes, &a.loaded, a.pc, pWake, pWoken)
		if a.wakes == none {
			m.endTurn(a)
		}
	case pBackState, pBackTail, pBackVersion, pBackFloors, pBackClaim, pBackTailAgain, pBackVersionAgain, pBackHold, pBackDone:
		m.stepBack(s, p, a)
	case pArm:
		m.arm(&s.freed, &a.sleep)
		m.look(a)
		if m.mutant("no second look before sleep") {
			a.pc = pSleep
		}
	case pSleep:
		m.look(a)
		m.lie(s.freed, &a.sleep, freed)
	default:
		return false
	}
	return true
}

// seatOf returns the seat that a producer has in the roster.
func (m *model) seatOf(p int8) int8 {
	if m.Heir {
		return 0
	}
	return p
}

func (m *model) record(s *state, p int8) *record {
	return &s.records[p][(s.producers[p].tail.number+1)%m.n()]
}

// enter stores the entry of a tail if the stored entry is older. The tail of a void has no entry.
func (m *model) enter(s *state, t tail) {
	if t.seat == void && !m.mutant("a void has an entry") {
		return
	}
	if e := &s.order[t.number%m.n()]; t.number > 0 && e.number < t.number {
		*e = entry{t.number, t.seat}
	}
}

// write writes the content of the next frame to a free block, or begins to wait for a free block.
func (m *model) write(s *state, p int8, a *producer) bool {
	if int(a.written) == m.Frames[p] && a.block < 0 {
		a.pc = pDone
		if m.Drain && a.flying != [mostBlocks]int8{} {
			a.pc = pBackState
			return m.stepProducer(s, p, 0)
		}
		return true
	}
	if a.block < 0 && !m.fill(s, p, a) {
		a.pc = pBackState
		return m.stepProducer(s, p, 0)
	}
	if b := a.block - p*mostBlocks; !m.reached(s, a, b) {
		return false
	}
	m.written(s, p, a)
	a.pc = pTail
	return true
}

// fill chooses a free block. It returns false if the producer has no free block.
func (m *model) fill(s *state, p int8, a *producer) bool {
	for b := range int8(m.Blocks) {
		if a.flying[b] == 0 {
			a.block = p*mostBlocks + b
			a.written++
			return true
		}
	}
	return false
}

// reached says whether the producer may write a block: all GPU work of consumers on the block is done.
func (m *model) reached(s *state, a *producer, b int8) bool {
	for c := range m.Consumers {
		if v := a.value[c][b]; v > s.cons[c].reached[word(v)] {
			return false
		}
	}
	for c := range m.Consumers {
		a.value[c][b] = 0
	}
	return true
}

func (m *model) written(s *state, p int8, a *producer) {
	m.unused(s, a.block, "producer", p)
	m.finished(s, a.block, p)
	s.content[a.block] = 16*(p+1) + a.written
}

// unused checks that no consumer uses a block that becomes free.
func (m *model) unused(s *state, b int8, who string, p int8) {
	for c := range int8(m.Consumers) {
		if s.ghost.uses[c] == b+1 {
			m.fault("%s %d takes block %d back, which consumer %d uses", who, p, b, c)
		}
	}
}

// finished checks that no consumer's work runs on a block that the producer is about to write.
func (m *model) finished(s *state, b, p int8) {
	for c := range int8(m.Consumers) {
		for v, on := range s.ghost.gpu[c] {
			if on == b+1 && int8(v) > s.cons[c].reached[word(int8(v))] {
				m.fault("producer %d writes block %d, on which work %d of consumer %d runs", p, b, v, c)
			}
		}
	}
}

// knows says whether the seats of the roster that the producer has read are still valid for the tail that the producer
// has loaded.
func (m *model) knows(s *state, a *producer, channel int8) bool {
	if a.known < 0 {
		return false
	}
	if m.mutant("only the version in the tail is looked at") {
		return a.tail.version == a.known%m.Versions
	}
	if m.mutant("the roster is read once") {
		return true
	}
	return s.version == a.known || channel == open && s.version == a.known+1 && a.tail.version == a.known%m.Versions
}

// roomInBroadcast says whether each consumer that blocks the channel has released the frame that leaves the channel next.
func (m *model) roomInBroadcast(s *state, a *producer) bool {
	leaves := a.tail.number + 1 - int8(m.Capacity)
	for c := range int8(m.Consumers) {
		if leaves >= 1 && m.blocks(a, c) && s.floor[c] <= leaves && !m.mutant("floors are not looked at for room") {
			return false
		}
	}
	return true
}

// blocks says whether a consumer blocks the channel, according to the roster that the producer has read.
func (m *model) blocks(a *producer, c int8) bool {
	return a.view[c] == active && !m.Policies[c].drops()
}

// publish publishes a frame in a single step.
func (m *model) publish(s *state, p int8, a *producer) {
	same := s.tail == a.tail
	if m.mutant("the swap does not look at the version") {
		same = s.tail.number == a.tail.number
	}
	if !same {
		a.tail, a.pc = tail{}, pTail
		return
	}
	s.tail.number++
	s.tail.seat = m.seatOf(p)
	b := a.block - p*mostBlocks
	a.flying[b] = s.tail.number
	m.claimed(s, s.tail.number, s.content[a.block])
	a.block, a.sleep, a.passed = -1, sleeper{}, false
	a.tail.number++
	a.pc = pEntry
}

// goOn sets the next step of a producer that has found a free place in the channel.
func (m *model) goOn(a *producer) {
	a.pc = pRecordClear
	if m.Turns {
		a.pc = pTurn
	}
}

// turn lets the other producer go first if the other producer has waited longer. With choice 1, the producer does not
// wait any longer, because the other producer has taken too long.
func (m *model) turn(s *state, p int8, a *producer, choice int) bool {
	other := s.waiting[1-p]
	first := other != 0 && (a.ticket == 0 || other < a.ticket) && s.producerSeats[1-p] == active && !a.passed
	switch {
	case !first && choice == 0:
		a.pc = pRecordClear
	case !first:
		return false
	case choice == 1:
		a.passed, a.pc = true, pRecordClear
	default:
		m.rest(a)
	}
	return true
}

// endTurn makes the producer begin with the next frame. A producer that has a ticket first gives the ticket back.
func (m *model) endTurn(a *producer) {
	a.pc = pWrite
	if a.ticket != 0 {
		a.pc = pEndTurn
	}
}

// rest makes the producer check the channel once more, and then sleep.
func (m *model) rest(a *producer) {
	switch {
	case m.Turns && a.ticket == 0 && a.block >= 0:
		a.pc = pTicket
	case a.sleep.armed:
		a.pc = pSleep
	default:
		a.pc = pArm
	}
	a.tail, a.survey, a.i, a.limit, a.state = tail{}, survey{}, 0, 0, 0
	a.gone, a.busy = [mostBlocks]bool{}, [mostBlocks]bool{}
}

// look makes the producer check again for a free place in the channel. A producer that has no block first checks for a
// free block.
func (m *model) look(a *producer) {
	a.pc = pTail
	if a.block < 0 {
		a.pc = pBackState
	}
}
