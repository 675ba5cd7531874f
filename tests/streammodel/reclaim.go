package streammodel

// stepBack takes a step of a producer that takes its blocks back.
func (m *model) stepBack(s *state, p int8, a *producer) {
	switch a.pc {
	case pBackState:
		a.state, a.pc = s.state, pBackTail
	case pBackTail:
		a.tail, a.pc = s.tail, pBackVersion
	case pBackVersion:
		switch {
		case !m.knows(s, a, a.state):
			a.known, a.pc = s.version, pBackSeats
		case m.mutant("holds are looked at before floors"):
			a.i, a.pc = 0, pBackHold
			m.nextHold(s, p, a)
		default:
			a.pc = pBackFloors
		}
	case pBackFloors:
		m.floors(s, a)
		switch {
		case m.mutant("holds are looked at before floors"):
			m.decide(s, p, a)
		case m.Queue && a.state != destroyed:
			a.i, a.pc = 0, pBackClaim
			m.nextFlying(s, p, a)
		default:
			a.i, a.pc = 0, pBackHold
			m.nextHold(s, p, a)
		}
	case pBackClaim:
		f := a.flying[a.i]
		k := s.claims[f%m.n()]
		a.gone[a.i] = k.number > f || k.number == f && k.tag == acknowledged || m.mutant("claims are not looked at")
		a.i++
		m.nextFlying(s, p, a)
	case pBackTailAgain:
		a.tail, a.pc = s.tail, pBackVersionAgain
	case pBackVersionAgain:
		if !m.knows(s, a, s.state) && !m.mutant("a consumer that joins while claims are looked at is not seen") {
			a.known, a.pc = s.version, pBackSeatsAgain
			return
		}
		a.i, a.pc = 0, pBackHold
		m.nextHold(s, p, a)
	case pBackHold:
		held := s.hold[a.i]
		for b, f := range a.flying {
			if f > 0 && f == held && s.used[a.i] > 0 && !m.mutant("holds are not looked at") {
				a.busy[b] = true
			}
		}
		a.i++
		m.nextHold(s, p, a)
	case pBackDone:
		m.fences(s, p, a)
	}
}

// floors finds the frames that the channel does not need any more. It also finds the frames that consumers without
// holds still have: the numbers from floor to next − 1.
func (m *model) floors(s *state, a *producer) {
	a.limit = a.tail.number - int8(m.Capacity)
	if m.mutant("a kept frame is used again") {
		a.limit++
	}
	ended := a.state >= closed
	if ended || m.Queue {
		a.limit = mostFrames
	}
	for c := range int8(m.Consumers) {
		if !m.Queue && a.state != destroyed && (m.blocks(a, c) || ended && a.view[c] == active) && !m.mutant("floors are not looked at") {
			a.limit = min(a.limit, s.floor[c]-1)
		}
	}
	for b, f := range a.flying {
		a.gone[b] = f > 0 && f <= a.limit
		for c := range int8(m.Consumers) {
			from, to := s.floor[c], s.next[c]
			has := !m.holds(c) && (a.view[c] == left || a.view[c] == active && a.state == destroyed)
			if has && from <= f && f < to && !m.mutant("what those that left have taken is not looked at") {
				a.busy[b] = true
			}
		}
	}
}

// nextFlying moves to the next claim that the producer must read.
func (m *model) nextFlying(s *state, p int8, a *producer) {
	for a.i < mostBlocks && a.flying[a.i] == 0 {
		a.i++
	}
	if a.i == mostBlocks {
		a.i, a.pc = 0, pBackTailAgain
		if a.gone == [mostBlocks]bool{} {
			m.rest(a)
		}
	}
}

// nextHold moves to the next consumer whose hold the producer must read. A consumer that producers wait for stores a
// hold only when it moves its floor past a frame that it still has, or leaves with a frame.
func (m *model) nextHold(s *state, p int8, a *producer) {
	if a.gone == [mostBlocks]bool{} && !m.mutant("holds are looked at before floors") {
		m.rest(a)
		return
	}
	for int(a.i) < m.Consumers && (a.view[a.i] == free || !m.holds(a.i) && m.mutant("the holds of those that block are not looked at")) {
		a.i++
	}
	if int(a.i) < m.Consumers {
		return
	}
	a.pc = pBackFloors
	if !m.mutant("holds are looked at before floors") {
		m.decide(s, p, a)
	}
}

// decide takes back the blocks that nobody needs.
func (m *model) decide(s *state, p int8, a *producer) {
	back := false
	for b := range a.flying {
		a.gone[b] = a.gone[b] && !a.busy[b]
		back = back || a.gone[b]
	}
	switch {
	case !back:
		m.rest(a)
	case m.GPU:
		a.pc = pBackDone
	default:
		m.back(s, p, a)
	}
}

// back makes the blocks in a.gone free. From then on, such a block may have any content.
func (m *model) back(s *state, p int8, a *producer) {
	for b := range a.flying {
		if a.gone[b] {
			a.flying[b] = 0
			at := p*mostBlocks + int8(b)
			m.unused(s, at, "producer", p)
			s.content[at] = 0
		}
	}
	m.rest(a)
	a.sleep, a.pc = sleeper{}, pWrite
}

// fences finds the fences that the next writers of the blocks must wait for. A block does not become free while a
// consumer writes the done entry of the block's frame.
func (m *model) fences(s *state, p int8, a *producer) {
	for b, f := range a.flying {
		for c := range int8(m.Consumers) {
			if !a.gone[b] || a.view[c] == free {
				continue
			}
			switch d := s.done[c][f%m.n()]; {
			case d.number == 0 && d.value != 0 && !m.mutant("a done entry that is being written counts as none"):
				a.gone[b] = false
			case d.number == f || d.number > f && !m.mutant("only the done entry of the number itself counts"):
				a.value[c][b] = d.value
			}
		}
	}
	if a.gone == [mostBlocks]bool{} {
		m.rest(a)
		return
	}
	m.back(s, p, a)
}
