package streammodel

// stepProducer takes the next step of a producer. It returns false if the producer can do nothing.
func (m *model) stepProducer(s *state, p int8) bool {
	a := &s.producers[p]
	switch a.pc {
	case pWrite:
		return m.write(s, p, a)
	case pTail:
		a.tail = s.tail
		switch {
		case a.tail.version != a.known && !m.mutant("no version in the tail"):
			a.reading, a.i, a.pc = a.tail.version, 0, pState
		case m.Queue:
			a.pc = pWaiting
		default:
			a.i, a.pc = 0, pRoom
		}
	case pState:
		if s.state != open {
			a.pc = pClosed
			return true
		}
		a.pc = pSlots
	case pSlots:
		a.view[a.i] = s.consumers[a.i]
		if a.i++; int(a.i) == m.Consumers {
			a.known = a.reading
			m.look(a)
		}
	case pRoom:
		m.room(s, a)
	case pWaiting:
		m.waiting(s, a)
	case pDropOne:
		c := &s.claims[a.number%m.n()]
		if m.waits(s, a.number) {
			*c = claim{a.number, acknowledged}
			m.acknowledged(s, a.number)
		}
		a.pc = pTail
	case pVoid:
		if s.tail == a.tail {
			s.tail.number++
			s.tail.producer = void
			m.claimed(s, s.tail.number, void)
		}
		a.pc = pTail
	case pHelp:
		if e := &s.order[a.tail.number%m.n()]; a.tail.number > 0 && e.number < a.tail.number && !m.mutant("nobody helps") {
			*e = entry{a.tail.number, a.tail.producer}
		}
		a.pc = pRecordClear
		if m.mutant("entry before the swap") {
			s.order[(a.tail.number+1)%m.n()] = entry{a.tail.number + 1, p}
		}
	case pRecordClear:
		s.records[p][(a.tail.number+1)%m.n()].seq = 0
		a.pc = pRecordBlock
		if m.mutant("seq before the record") {
			s.records[p][(a.tail.number+1)%m.n()].seq = a.tail.number + 1
		}
	case pRecordBlock:
		s.records[p][(a.tail.number+1)%m.n()].block = a.block
		a.pc = pRecordSeq
	case pRecordSeq:
		s.records[p][(a.tail.number+1)%m.n()].seq = a.tail.number + 1
		a.pc = pSwap
	case pSwap:
		if s.tail != a.tail {
			a.pc = pTail
			return true
		}
		s.tail.number++
		s.tail.producer = p
		a.flying[m.ownBlock(p, a.block)] = s.tail.number
		m.claimed(s, s.tail.number, s.content[a.block])
		a.block, a.armed = -1, false
		a.pc = pEntry
	case pEntry:
		n := a.tail.number + 1
		if e := &s.order[n%m.n()]; e.number < n {
			*e = entry{n, p}
		}
		a.pc = pBell
	case pBell:
		a.seen = s.published
		a.pc = pWrite
		if a.seen&1 == 1 {
			a.pc = pRing
		}
	case pRing:
		a.pc = pBell
		if m.ring(s, &s.published, a.seen, onPublished) {
			a.pc = pWrite
		}
	case pOldest:
		m.oldest(s, p, a)
	case pFloors:
		m.floors(s, a)
	case pClaim:
		c := s.claims[a.number%m.n()]
		a.i, a.j, a.pc = 0, 0, pHolds
		if !(c.number > a.number || c.number == a.number && c.tag == acknowledged) {
			m.noRoom(a)
		}
	case pHolds:
		m.lookAtHolds(s, p, a)
	case pArm:
		a.seen = s.freed
		a.pc = pArmSwap
		if a.seen&1 == 1 {
			m.armed(a)
		}
	case pArmSwap:
		if s.freed != a.seen {
			a.pc = pArm
			return true
		}
		s.freed |= 1
		a.seen = s.freed
		m.armed(a)
	case pSleep:
		a.armed = false
		m.look(a)
		if s.freed == a.seen {
			a.sleep = onFreed
		}
	default:
		return false
	}
	return true
}

// write puts the content of the next frame into a free block, or goes to have one back.
func (m *model) write(s *state, p int8, a *producer) bool {
	if a.block >= 0 {
		a.pc = pTail
		return m.stepProducer(s, p)
	}
	if int(a.written) == m.Frames[p] {
		a.pc = pDone
		return true
	}
	for b := range int8(m.Blocks) {
		if a.flying[b] == 0 {
			a.block = m.block(p, b)
			a.written++
			for c := range s.ghost.uses {
				if s.ghost.uses[c] == a.block+1 {
					m.fault("producer %d writes block %d, which consumer %d uses", p, a.block, c)
				}
			}
			s.content[a.block] = 16*(p+1) + a.written
			a.pc = pTail
			return true
		}
	}
	a.pc = pOldest
	return m.stepProducer(s, p)
}

// room says whether the floors of those who block let the next number in.
func (m *model) room(s *state, a *producer) {
	victim := a.tail.number + 1 - int8(m.Capacity)
	for int(a.i) < m.Consumers && !(a.view[a.i].state == active && !a.view[a.i].policy.drops()) {
		a.i++
	}
	if victim < 1 || int(a.i) == m.Consumers {
		a.pc = pHelp
		return
	}
	if s.floor[a.i] <= victim {
		m.noRoom(a)
		return
	}
	a.i++
}

// waiting says whether a queue takes the next number. The scan of the claims is one step: it stands for what a scan sees if nobody
// takes or gives back meanwhile, and a later step is checked again by the swap of the tail or of a claim.
func (m *model) waiting(s *state, a *producer) {
	var oldest, count int8
	for n := max(s.head, 1); n <= a.tail.number; n++ {
		if m.waits(s, n) {
			if count == 0 {
				oldest = n
			}
			count++
		}
	}
	n := a.tail.number + 1
	c := s.claims[n%m.n()]
	switch {
	case int(count) >= m.Capacity && m.Full == block:
		m.noRoom(a)
	case int(count) >= m.Capacity:
		a.number, a.pc = oldest, pDropOne
	case c.number > 0 && c.tag != acknowledged:
		a.pc = pVoid
	default:
		a.pc = pHelp
	}
}

// waits says whether a number of a queue was published and nobody has it.
func (m *model) waits(s *state, n int8) bool {
	c := s.claims[n%m.n()]
	if e := s.order[n%m.n()]; e.number == n && e.producer == void || s.tail.number == n && s.tail.producer == void {
		return false
	}
	return c.number < n && (c.number == 0 || c.tag == acknowledged) || c.number == n && c.tag == givenBack
}

func (m *model) noRoom(a *producer) {
	if a.armed {
		a.pc = pSleep
		return
	}
	a.pc = pArm
}

// armed makes the producer look once more, now that bit 0 of freed is set.
func (m *model) armed(a *producer) {
	a.armed = true
	m.look(a)
	if m.mutant("no second look before sleep") {
		a.pc = pSleep
	}
}

// look has the producer look for room, or for a block if it has none.
func (m *model) look(a *producer) {
	if a.block >= 0 {
		a.pc = pTail
	} else {
		a.pc = pOldest
	}
}

// oldest chooses the frame whose block may come back.
func (m *model) oldest(s *state, p int8, a *producer) {
	a.tail = s.tail
	if a.tail.version != a.known {
		// The state of the channel is of no interest here: what was published comes back after the end, too.
		a.reading, a.i, a.pc = a.tail.version, 0, pState
		return
	}
	var number int8
	for b := range int8(m.Blocks) {
		if f := a.flying[b]; f > 0 && (number == 0 || f < number) {
			number = f
		}
	}
	switch {
	case number == 0:
		a.i = 0
		m.noRoom(a)
	case m.Queue:
		a.number, a.pc = number, pClaim
	case a.tail.number < number+int8(m.Capacity) && !m.mutant("a kept frame is used again"):
		m.noRoom(a)
	default:
		a.number, a.i, a.pc = number, 0, pFloors
	}
}

func (m *model) floors(s *state, a *producer) {
	for int(a.i) < m.Consumers && !(a.view[a.i].state == active && !a.view[a.i].policy.drops()) {
		a.i++
	}
	if int(a.i) == m.Consumers {
		a.i, a.j, a.pc = 0, 0, pHolds
		return
	}
	if s.floor[a.i] <= a.number {
		m.noRoom(a)
		return
	}
	a.i++
}

func (m *model) lookAtHolds(s *state, p int8, a *producer) {
	holds := func(v slot) bool {
		return !m.mutant("holds are not looked at") && (v.state == left || v.state == active && (v.policy.drops() || m.Queue))
	}
	for int(a.i) < m.Consumers && !holds(a.view[a.i]) {
		a.i++
	}
	if int(a.i) == m.Consumers {
		for b := range a.flying {
			if a.flying[b] == a.number {
				a.flying[b] = 0
			}
		}
		a.armed = false
		a.pc = pWrite
		return
	}
	c := a.i
	if s.holds[c][a.j].number == a.number || a.view[c].state == left && s.floor[c] <= a.number && a.number < s.next[c] {
		m.noRoom(a)
		return
	}
	if a.j++; int(a.j) == mostHolds {
		a.i, a.j = a.i+1, 0
	}
}
