package streammodel

// stepConsumer takes the next step of a consumer. It returns false if the consumer has no step, or if the step does not have this choice.
func (m *model) stepConsumer(s *state, c int8, choice int) bool {
	a := &s.cons[c]
	if choice > 0 && a.pc != cUse && a.pc != cState && a.pc != cEntry {
		return false
	}
	switch a.pc {
	case cOutside:
		if s.seats[c] != active || s.service.joining(s) && s.service.who == c {
			return false
		}
		a.next = s.start[c]
		a.last = a.next - 1
		a.pc = cTail
	case cTail:
		m.begin(s, c, a)
	case cUsed:
		a.pc = cHold
		s.used[c] = 1
		if m.mutant("the count of holds is raised too late") {
			a.pc = cEntry
		}
	case cHold:
		s.hold[c], a.pc = a.n, cOwn
	case cOwn:
		m.own(s, c, a)
	case cHoldTail:
		a.tail, a.pc = s.tail, cEntry
		if m.mutant("the count of holds is raised too late") {
			a.pc = cUsed
		}
		if a.n < m.oldestKept(a.tail.number) {
			a.pc = cEndHold
		}
	case cClaim:
		a.pc = cEndHold
		if k := &s.claims[a.n%m.n()]; *k == a.survey.claim {
			*k = claim{a.n, claimedBy + c}
			m.taken(s, c, a.n)
			a.pc = cEntry
		}
		a.survey = survey{}
	case cEntry, cSeq, cBlock, cSeqAgain, cOutrun:
		return m.read(s, c, a, choice)
	case cNext:
		m.take(s, c, a)
	case cUse:
		return m.use(s, c, a, choice)
	case cDoneClear, cDoneValue, cDoneNumber:
		return m.stepDone(s, c, a)
	case cRelease:
		s.ghost.uses[c] = 0
		s.floor[c] = a.next
		m.ring(a, freed, m.after(a))
	case cEndHold:
		word := freed
		if s.ghost.uses[c] == 0 && !a.settled && m.mutant("a hold that was for nothing wakes nobody") {
			word = none
		}
		s.ghost.uses[c], s.hold[c] = 0, 0
		m.ring(a, word, m.after(a))
	case cEnding:
		return m.settle(s, c, a, choice)
	case cWake, cWoken:
		a.pc = m.wake(s, &a.wakes, &a.loaded, a.pc, cWake, cWoken)
		if a.wakes == none {
			a.pc, a.then = a.then, cOutside
		}
	case cState:
		return m.empty(s, c, a, choice)
	case cArm:
		m.arm(&s.published, &a.sleep)
		a.pc = cTail
		if m.mutant("no second look before sleep") {
			a.pc = cSleep
		}
	case cSleep:
		a.pc = cTail
		m.lie(s.published, &a.sleep, published)
	case cPassHold:
		s.hold[c], s.used[c] = a.n, 1
		a.pc = cPassFloor
		if m.mutant("a consumer that passes a frame moves its floor before its hold") {
			m.ring(a, freed, cUse)
		}
	case cPassFloor:
		s.floor[c] = a.next
		m.ring(a, freed, cUse)
		if m.mutant("a consumer that passes a frame moves its floor before its hold") {
			a.pc, a.wakes, a.then = cPassHold, none, cOutside
		}
	case cLeaveHold:
		s.hold[c], s.used[c] = a.n, 1
		a.pc = cLeaveFloor
		if m.mutant("a consumer that leaves moves its floor before its hold") {
			m.ring(a, freed, cSaid)
		}
	case cLeaveFloor:
		s.floor[c] = a.next
		m.ring(a, freed, cSaid)
		if m.mutant("a consumer that leaves moves its floor before its hold") {
			a.pc, a.wakes, a.then = cLeaveHold, none, cOutside
		}
	case cSaid:
		a.said = true
		a.pc = cDone
		if s.ghost.uses[c] > 0 {
			a.pc = cEndHold
		}
	default:
		return false
	}
	return true
}

// after returns the next step of a consumer that has released a frame, or that has cleared its hold of a frame that it
// did not get.
func (m *model) after(a *consumer) pc {
	if a.said || a.ends {
		return cDone
	}
	return cTail
}

// ring makes the consumer wake the members that sleep on the futex words in word. After these steps, the consumer
// continues with the step in the parameter then.
func (m *model) ring(a *consumer, word futex, then pc) {
	if m.mutant("nobody is woken for room") {
		word &^= freed
	}
	if then == cTail || then == cDone { // the consumer does not need the frame any more
		a.n, a.owner, a.block, a.settled, a.failed, a.tail = 0, 0, 0, false, false, tail{}
	}
	a.wakes, a.then, a.pc = word, then, cWake
}

// begin finds the next number that the consumer tries to take.
func (m *model) begin(s *state, c int8, a *consumer) {
	if m.Queue {
		m.oldestThatWaits(s, c, a)
		return
	}
	a.tail = s.tail
	if a.next > a.tail.number {
		a.tail, a.pc = tail{}, cState
		return
	}
	a.sleep = sleeper{}
	a.n = max(a.next, m.oldestKept(a.tail.number))
	if !m.holds(c) {
		a.pc = cEntry
		return
	}
	if m.Policies[c] == latest {
		a.n = a.tail.number
	}
	m.hold(s, c, a)
}

func (m *model) hold(s *state, c int8, a *consumer) {
	a.pc = cHold
	switch {
	case m.mutant("no hold"):
		a.pc = cOwn
	case s.used[c] == 0 && !m.mutant("the count of holds is raised too late"):
		a.pc = cUsed
	}
}

// oldestThatWaits finds the frame that has waited longest in a queue.
func (m *model) oldestThatWaits(s *state, c int8, a *consumer) {
	if a.tail == (tail{}) {
		a.tail = s.tail
		a.survey = m.walk(s, a.tail)
		return
	}
	if m.survey(s, &a.survey, a.tail, 1) {
		return
	}
	a.pc = cState
	if a.survey.first > 0 {
		a.sleep = sleeper{}
		a.n = a.survey.first
		a.survey = survey{claim: a.survey.claim}
		m.hold(s, c, a)
		return
	}
	a.tail, a.survey = tail{}, survey{}
}

// own checks that the consumer still takes part in the channel. It runs after the consumer has stored its hold. A
// consumer that stores no holds has stored the number that it takes next instead.
func (m *model) own(s *state, c int8, a *consumer) {
	part := s.seats[c] == active && s.state != destroyed || m.mutant("the own seat is not looked at again")
	switch {
	case !m.holds(c) && part:
		m.got(s, c, a)
	case !m.holds(c):
		a.ends, a.pc = true, cRelease
	case !part:
		a.ends, a.pc = true, cEndHold
	case m.Queue:
		a.pc = cClaim
	case m.mutant("no second look after the hold"):
		a.pc = cEntry
	default:
		a.pc = cHoldTail
	}
}

// read reads the frame with the number that the consumer tries to take.
func (m *model) read(s *state, c int8, a *consumer, choice int) bool {
	wrong := func(format string, args ...any) {
		if m.holds(c) && !m.Queue {
			a.pc = cOutrun
			return
		}
		m.fault(format, args...)
	}
	switch a.pc {
	case cEntry:
		if choice > 0 && int(a.failures) == m.Fails {
			return false
		}
		e := s.order[a.n%m.n()]
		if e.number < a.n && a.tail.number == a.n {
			e = entry{a.n, a.tail.seat}
		}
		if e.number != a.n || e.seat == void {
			wrong("consumer %d finds the entry of %d (seat %d) in the slot of %d", c, e.number, e.seat, a.n)
			return true
		}
		a.tail = tail{}
		a.owner, a.pc = s.owners[e.seat], cSeq
		if s.producerSeats[e.seat] == free {
			wrong("consumer %d finds that the seat of the producer of %d is free", c, a.n)
		}
		if choice > 0 {
			a.failures++
			a.failed, a.pc = true, cNext
		}
	case cSeq, cSeqAgain:
		if seq := s.records[a.owner][a.n%m.n()].seq; seq != a.n {
			wrong("consumer %d finds seq %d in the record of %d", c, seq, a.n)
			return true
		}
		if a.pc++; a.pc > cSeqAgain {
			a.pc = cNext
		}
	case cBlock:
		a.block, a.pc = s.records[a.owner][a.n%m.n()].block, cSeqAgain
	case cOutrun:
		if a.n >= m.oldestKept(s.tail.number) {
			m.fault("consumer %d does not find frame %d, which is kept", c, a.n)
		}
		a.pc = cEndHold
	}
	return true
}

// take records that the consumer has the frame.
func (m *model) take(s *state, c int8, a *consumer) {
	a.next = a.n + 1
	switch {
	case m.Queue:
		a.next = 0
		word := freed
		if m.mutant("nobody is woken for a claim") {
			word = none
		}
		m.got(s, c, a)
		m.ring(a, word, a.pc)
	case m.holds(c):
		s.floor[c] = a.next
		m.got(s, c, a)
	default:
		s.next[c] = a.next
		a.pc = cOwn
	}
}

// got checks the frame before the consumer uses the frame.
func (m *model) got(s *state, c int8, a *consumer) {
	if !m.Queue && (a.n <= a.last || !m.holds(c) && !m.Misses && a.n != a.last+1) {
		m.fault("consumer %d takes frame %d after %d", c, a.n, a.last)
	}
	a.last = a.n
	a.pc = cUse
	if a.failed {
		return
	}
	if got := s.content[a.block]; got != s.ghost.frames[a.n] {
		m.fault("consumer %d reads %d as frame %d, which was %d", c, got, a.n, s.ghost.frames[a.n])
	}
	s.ghost.uses[c] = a.block + 1
}

// use ends the use of the frame: the consumer releases the frame, or leaves with the frame in hand (choice 1).
func (m *model) use(s *state, c int8, a *consumer, choice int) bool {
	if m.Hoards {
		return false
	}
	if m.Queue {
		a.pc = cSettle
		return m.settle(s, c, a, choice)
	}
	if choice > 0 {
		if !m.Leave[c] || a.failed {
			return false
		}
		a.pc = cSaid
		if s.hold[c] == 0 {
			a.pc = cLeaveHold
			if m.mutant("a consumer that leaves moves its floor before its hold") {
				a.pc = cLeaveFloor
			}
		}
		return true
	}
	switch {
	case m.Passes && s.hold[c] == 0 && !a.failed:
		a.pc = cPassHold
		if m.mutant("a consumer that passes a frame moves its floor before its hold") {
			a.pc = cPassFloor
		}
	case m.GPU:
		a.pc = cDoneClear
	default:
		m.release(s, c, a)
	}
	return m.stepConsumer(s, c, 0)
}

func (m *model) release(s *state, c int8, a *consumer) {
	a.pc = cRelease
	if s.hold[c] > 0 {
		a.pc = cEndHold
	}
	if a.failed && m.mutant("a frame that failed is not released") {
		m.ring(a, none, cTail)
	}
}

// stepDone writes the fence that says when the work on the frame is done.
func (m *model) stepDone(s *state, c int8, a *consumer) bool {
	d := &s.done[c][a.n%m.n()]
	switch a.pc {
	case cDoneClear:
		v := a.issued + 1
		if d.value > 0 && word(d.value) != word(v) && d.value > a.reached[word(d.value)] && !m.mutant("a done entry is overwritten while its work runs") {
			return false
		}
		a.issued = v
		s.ghost.gpu[c][v] = a.block + 1
		d.number, a.pc = 0, cDoneValue
	case cDoneValue:
		d.value, a.pc = a.issued, cDoneNumber
	case cDoneNumber:
		d.number = a.n
		m.release(s, c, a)
	}
	return true
}

// word returns which of the two words of a consumer's timeline the piece of work v uses. Two pieces of work whose
// fences the consumer writes to the same done entry may use the same word.
func word(v int8) int8 { return v >> 2 & 1 }

// stepGPU finishes the next piece of work on one of the two words.
func (m *model) stepGPU(s *state, c int8, on int8) bool {
	a := &s.cons[c]
	for v := a.reached[on] + 1; v <= a.issued; v++ {
		if word(v) == on {
			a.reached[on] = v
			s.ghost.gpu[c][v] = 0
			return true
		}
	}
	return false
}

// settle acknowledges a frame of a queue, or requeues the frame (choice 1).
func (m *model) settle(s *state, c int8, a *consumer, choice int) bool {
	if a.pc == cEnding { // other consumers sleep until all frames are done
		word := none
		if s.state != open && !m.mutant("nobody is woken for the end") {
			word = published
		}
		m.ring(a, word, cEndHold)
		return true
	}
	if choice > 0 && (a.failed || int(a.returned) == m.Requeue) {
		return false
	}
	k := &s.claims[a.n%m.n()]
	if *k != (claim{a.n, claimedBy + c}) {
		m.fault("consumer %d finds %v in the claim of %d, which it has", c, *k, a.n)
		return true
	}
	s.ghost.mine[c] = 0
	a.settled = true
	switch {
	case choice > 0:
		a.returned++
		k.tag = givenBack
		word := published
		if m.mutant("nobody is woken for a frame that was requeued") {
			word = none
		}
		m.ring(a, word, cEndHold)
	case a.failed && m.mutant("a frame that failed is not released"):
		a.pc = cEndHold
	default:
		k.tag = acknowledged
		m.acknowledged(s, a.n)
		a.pc = cEnding
	}
	return true
}

// empty decides what a consumer does if there is no frame: the consumer ends, sleeps, or leaves (choice 1).
func (m *model) empty(s *state, c int8, a *consumer, choice int) bool {
	if choice > 0 {
		if !m.Leave[c] || a.sleep.armed {
			return false
		}
		a.pc = cSaid
		return true
	}
	ended := s.state == closed && a.next > s.end
	if m.Queue {
		ended = s.state == closed && s.head > s.end
	}
	switch {
	case s.seats[c] != active, s.state == destroyed, ended:
		a.sleep, a.pc = sleeper{}, cDone
	case a.sleep.armed:
		a.pc = cSleep
	default:
		a.pc = cArm
	}
	return true
}
