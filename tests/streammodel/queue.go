package streammodel

// stepQueue takes a step of a producer that needs a free slot in a queue.
func (m *model) stepQueue(s *state, p int8, a *producer) {
	n := a.tail.number + 1
	switch a.pc {
	case pSurvey:
		limit := m.limit()
		if a.i == 1 { // no slot is free, so the producer drops a waiting frame
			limit = 1
		}
		if m.survey(s, &a.survey, a.tail, limit) {
			return
		}
		switch {
		case a.survey.count < limit && a.i == 1:
			m.rest(a)
		case a.survey.count < limit:
			a.pc = pResident
		case m.Full == block:
			m.rest(a)
		default:
			a.pc = pDrop
		}
	case pDrop:
		a.i, a.pc = 0, pTail
		if k := &s.claims[a.survey.first%m.n()]; *k == a.survey.claim {
			*k = claim{a.survey.first, acknowledged}
			m.acknowledged(s, a.survey.first)
			a.wakes = freed
			a.pc = pWake
		}
		a.tail, a.survey = tail{}, survey{}
	case pResident:
		e, k := m.resident(s, n, a.tail)
		a.survey = survey{}
		switch {
		case e > n, e == n:
			a.tail, a.pc = tail{}, pTail
		case m.isDone(e, k), m.mutant("the slot of a number may be in use"):
			m.goOn(a)
		default:
			a.pc = pSkip
		}
	case pSkip:
		a.pc = pTail
		for i := range m.n() {
			if m.isDone(m.resident(s, n+i, a.tail)) || m.mutant("voids without end") {
				a.pc = pVoid
			}
		}
		switch {
		case a.pc == pVoid:
		case m.Full == block:
			m.rest(a)
		default:
			a.i, a.survey, a.pc = 1, m.walk(s, a.tail), pSurvey
		}
	case pVoid:
		if s.tail == a.tail {
			s.tail.number++
			s.tail.seat = void
			m.claimed(s, s.tail.number, void)
		}
		a.tail, a.pc = tail{}, pTail
	}
}

// resident returns the number of the frame in the slot of n, and the claim of the slot. Only the newest frame, which
// the tail t names, can be without an entry.
func (m *model) resident(s *state, n int8, t tail) (int8, claim) {
	e := s.order[n%m.n()].number
	if e < n && n == t.number && t.seat != void {
		e = n
	}
	return e, s.claims[n%m.n()]
}

// waits says whether the frame e waits in the queue: no consumer has the frame.
func (m *model) waits(e int8, k claim) bool {
	return k.number < e || k.number == e && k.tag == givenBack
}

// isDone says whether a new frame may use the slot of the frame e.
func (m *model) isDone(e int8, k claim) bool {
	if m.mutant("a frame that nobody has taken needs no slot") && k.number < e {
		return true
	}
	return e == 0 || k.number > e || k.number == e && k.tag == acknowledged
}

// walk returns a new survey of a queue that has the tail t.
func (m *model) walk(s *state, t tail) survey {
	return survey{head: s.head, n: max(s.head, t.number-m.n()+1, 1), open: t.number + 1}
}

// survey examines the slot of the number v.n, and returns true if the caller must call survey again. At the end of the survey, it moves the
// head past the frames that are done.
func (m *model) survey(s *state, v *survey, t tail, limit int8) bool {
	began := max(v.head, t.number-m.n()+1, 1)
	every := began > max(v.head, 1) // any slot may have an old frame, so the survey examines every slot
	if v.n <= t.number && (every || v.count < limit) {
		e, k := m.resident(s, v.n, t)
		if e <= v.n && !m.isDone(e, k) {
			v.open = min(v.open, e)
			if m.waits(e, k) {
				v.count++
				if v.first == 0 || e < v.first {
					v.first, v.claim = e, k
				}
			}
		}
		v.n++
		return true
	}
	if v.open > v.head && s.head == v.head {
		s.head = v.open
	}
	return false
}
