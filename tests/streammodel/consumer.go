package streammodel

// stepConsumer takes the next step of a consumer, and says in how many ways it could go on: the caller asks for each by choice.
func (m *model) stepConsumer(s *state, c, choice int8) bool {
	a := &s.cons[c]
	drops := m.Policies[c].drops()
	switch a.pc {
	case cOutside:
		if s.consumers[c].state != active || !s.service.joined(c) {
			return false
		}
		a.next, a.pc = s.ghost.start[c], cTail
		a.last = a.next - 1
		return m.stepConsumer(s, c, 0)
	case cTail:
		a.tail = s.tail
		switch {
		case m.Queue:
			a.pc = cClaims
		case a.next > a.tail.number:
			a.pc = cState
		default:
			a.armed = false
			a.n = a.next
			if drops {
				a.n = max(a.next, m.oldestKept(a.tail.number))
			}
			if m.Policies[c] == latest {
				a.n = a.tail.number
			}
			a.pc = cEntry
			if drops && !m.mutant("no hold") {
				a.pc = cHold
			}
		}
	case cHold:
		s.holds[c][0] = hold{number: a.n}
		a.pc = cHoldTail
		switch {
		case m.Queue:
			a.pc = cClaim
		case m.mutant("no second look after the hold"):
			a.pc = cEntry
		}
	case cHoldTail:
		a.tail = s.tail
		a.pc = cEntry
		if a.n < m.oldestKept(a.tail.number) {
			a.pc = cUnhold
		}
	case cEntry:
		m.entry(s, c, a)
	case cSeq, cSeqAgain:
		seq := s.records[a.producer][a.n%m.n()].seq
		switch {
		case seq == a.n && a.pc == cSeq:
			a.pc = cBlock
		case seq == a.n:
			a.pc = cNext
		case drops && !m.Queue:
			a.pc = cOutrun
		default:
			m.fault("consumer %d finds seq %d in the record of %d", c, seq, a.n)
		}
	case cOutrun:
		if a.n >= m.oldestKept(s.tail.number) {
			m.fault("consumer %d finds a record of %d that is not there, and the frame is kept", c, a.n)
		}
		a.pc = cUnhold
	case cBlock:
		a.block = s.records[a.producer][a.n%m.n()].block
		a.pc = cSeqAgain
	case cNext:
		a.next = a.n + 1
		s.next[c] = a.next
		a.pc = cUse
	case cUse, cUsed:
		m.use(s, c, a)
	case cRelease:
		s.floor[c] = a.next
		a.pc = cBell
	case cUnhold:
		s.holds[c][0] = hold{}
		a.pc = cBell
		if a.last != a.n { // nothing was taken: start anew
			a.pc = cTail
		}
	case cClaims:
		m.lookForClaim(s, a)
	case cClaim:
		a.pc = cUnhold
		if m.waits(s, a.n) {
			s.claims[a.n%m.n()] = claim{a.n, claimedBy + c}
			a.pc = cEntry
		}
	case cAck:
		if choice == 1 {
			if int(a.returned) == m.GiveBack {
				return false
			}
			a.returned++
			a.pc = cGiveBack
			return m.stepConsumer(s, c, 0)
		}
		if k := &s.claims[a.n%m.n()]; *k == (claim{a.n, claimedBy + c}) {
			k.tag = acknowledged
			m.acknowledged(s, a.n)
		} else {
			m.fault("consumer %d finds %v in the claim of %d that it has", c, *k, a.n)
		}
		a.pc = cHead
	case cGiveBack:
		s.claims[a.n%m.n()].tag = givenBack
		a.wakes = true
		a.pc = cUnhold
	case cHead:
		m.moveHead(s)
		a.pc = cEnding
	case cEnding: // others sleep until everything is acknowledged
		a.wakes = s.state != open && !m.mutant("nobody is woken for the end")
		a.pc = cUnhold
	case cBell, cRing:
		m.bell(s, a)
	case cState:
		a.state, a.pc = s.state, cStateTail
	case cStateTail:
		m.empty(s, c, a)
	case cArm:
		a.seen, a.pc = s.published, cArmSwap
		if a.seen&1 == 1 {
			m.armedConsumer(a)
		}
	case cArmSwap:
		if s.published != a.seen {
			a.pc = cArm
			return true
		}
		s.published |= 1
		a.seen = s.published
		m.armedConsumer(a)
	case cSleep:
		a.armed = false
		a.pc = cTail
		if s.published == a.seen {
			a.sleep = onPublished
		}
	default:
		return false
	}
	return true
}

func (m *model) armedConsumer(a *consumer) {
	a.armed = true
	a.pc = cTail
	if m.mutant("no second look before sleep") {
		a.pc = cSleep
	}
}

// entry finds out whose frame it is.
func (m *model) entry(s *state, c int8, a *consumer) {
	e := s.order[a.n%m.n()]
	switch {
	case e.number == a.n:
		a.producer = e.producer
	case e.number < a.n && a.tail.number == a.n:
		a.producer = a.tail.producer
	case e.number < a.n:
		m.fault("consumer %d finds the entry of %d in the slot of %d, and the tail was %d", c, e.number, a.n, a.tail.number)
	case m.Policies[c].drops() && !m.Queue:
		a.pc = cOutrun
		return
	default:
		m.fault("consumer %d was to get %d, and finds %d in its slot", c, a.n, e.number)
	}
	a.pc = cSeq
	if a.producer == void { // of a broadcast there is none, of a queue it is passed over before
		m.fault("consumer %d takes the void number %d", c, a.n)
	}
}

// use reads the content at two moments: it must be the frame's at both.
func (m *model) use(s *state, c int8, a *consumer) {
	if s.content[a.block] != s.ghost.frames[a.n] {
		m.fault("consumer %d reads %d as frame %d, which was %d", c, s.content[a.block], a.n, s.ghost.frames[a.n])
	}
	if a.pc == cUse {
		s.ghost.uses[c] = a.block + 1
		a.pc = cUsed
		return
	}
	s.ghost.uses[c] = 0
	if !m.Queue && (a.n <= a.last || !m.Policies[c].drops() && a.n != a.last+1) {
		m.fault("consumer %d took frame %d after %d", c, a.n, a.last)
	}
	a.last = a.n
	a.takes++
	switch {
	case m.Queue:
		a.pc = cAck
	case m.Policies[c].drops():
		a.pc = cUnhold
	default:
		a.pc = cRelease
	}
}

// lookForClaim finds the smallest number that nobody has. The scan is one step, as in waiting; the swap checks what it found.
func (m *model) lookForClaim(s *state, a *consumer) {
	for n := max(s.head, 1); n <= a.tail.number; n++ {
		if m.waits(s, n) {
			a.armed = false
			a.n, a.last, a.pc = n, 0, cHold
			return
		}
	}
	a.pc = cState
}

// moveHead passes over what is acknowledged or void.
func (m *model) moveHead(s *state) {
	n := max(s.head, 1)
	for n <= s.tail.number && m.passed(s, n) {
		n++
	}
	s.head = n
}

// bell wakes those for whom the consumer has done something.
func (m *model) bell(s *state, a *consumer) {
	word, who := &s.freed, onFreed
	if a.wakes {
		word, who = &s.published, onPublished
	}
	if a.pc == cBell {
		a.seen = *word
		a.pc = cRing
		if a.seen&1 == 0 || m.mutant("nobody is woken for room") {
			a.wakes, a.pc = false, cTail
		}
		return
	}
	a.pc = cBell
	if m.ring(s, word, a.seen, who) {
		a.wakes, a.pc = false, cTail
	}
}

// empty decides what to do where nothing is there: end, arm, or sleep.
func (m *model) empty(s *state, c int8, a *consumer) {
	a.tail = s.tail
	ended := a.state == closed && a.next > s.end
	if m.Queue {
		ended = a.state == closed && m.allAcknowledged(s)
	}
	switch {
	case ended:
		a.pc = cDone
	case m.Queue && m.anyWaits(s, a.tail.number), !m.Queue && a.next <= a.tail.number:
		a.armed = false
		a.pc = cTail
	case m.Leave[c] && !a.armed && a.takes > 0:
		a.pc = cLeaving
	case a.armed:
		a.pc = cSleep
	default:
		a.pc = cArm
	}
}

func (m *model) anyWaits(s *state, most int8) bool {
	for n := max(s.head, 1); n <= most; n++ {
		if m.waits(s, n) {
			return true
		}
	}
	return false
}

func (m *model) allAcknowledged(s *state) bool {
	for n := max(s.head, 1); n <= s.end; n++ {
		if !m.passed(s, n) {
			return false
		}
	}
	return true
}

// passed says whether a number of a queue is acknowledged or void.
func (m *model) passed(s *state, n int8) bool {
	c, e := s.claims[n%m.n()], s.order[n%m.n()]
	return c.number > n || c.number == n && c.tag == acknowledged || e.number == n && e.producer == void ||
		s.tail.number == n && s.tail.producer == void
}
