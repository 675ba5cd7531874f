package streammodel

// claimed records the content of a number that a producer has published.
func (m *model) claimed(s *state, n, content int8) {
	if int(n) > mostFrames {
		m.fault("number %d is beyond what a state remembers", n)
		return
	}
	s.ghost.frames[n] = content
}

// taken records that a consumer of a queue has claimed a frame. If another consumer has the frame, this is a fault.
func (m *model) taken(s *state, c, n int8) {
	for other := range int8(m.Consumers) {
		if s.ghost.mine[other] == n {
			m.fault("consumer %d claims frame %d, which consumer %d has", c, n, other)
		}
	}
	s.ghost.mine[c] = n
}

func (m *model) acknowledged(s *state, n int8) {
	if s.ghost.acked[n]++; s.ghost.acked[n] > 1 {
		m.fault("frame %d is acknowledged twice", n)
	}
}

// end checks a state in which no actor has a step left.
func (m *model) end(s *state) {
	for p := range int8(m.Producers) {
		a := &s.producers[p]
		if m.GivesUp && a.pc == pOutside && s.producers[0].dead {
			m.fault("producer %d gets no seat", p)
		}
		if a.dead || a.pc == pDone || a.pc == pOutside && (m.Heir || s.state != open) {
			continue
		}
		if a.block >= 0 && !m.full(s) || a.block < 0 && !m.allNeeded(s, a) {
			m.fault("producer %d sleeps for ever before it %v", p, a.pc)
		}
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		if s.seats[c] != free && (a.dead || a.said) {
			m.fault("the seat of consumer %d, which is gone, stays", c)
		}
		switch {
		case a.pc == cOutside && m.Queue && s.state == closed:
			m.fault("consumer %d cannot join a closed queue", c)
		case a.dead, a.pc == cOutside, a.pc == cUse && m.Hoards:
		case a.pc == cDone:
			if !m.Queue && !m.Policies[c].drops() && s.seats[c] == active && s.state == closed && a.last != s.end && s.start[c] <= s.end {
				m.fault("consumer %d ends after frame %d of %d", c, a.last, s.end)
			}
		case s.state >= closed, s.seats[c] != active:
			m.fault("consumer %d sleeps for ever, and nothing comes any more", c)
		case !m.Queue && a.next <= s.tail.number, m.Queue && m.waiting(s) > 0:
			m.fault("consumer %d sleeps for ever, and frames are there", c)
		}
	}
	if m.Queue && s.state == closed && m.anybody(s) {
		for n := int8(1); n <= s.end; n++ {
			if s.ghost.frames[n] != void && s.ghost.acked[n] != 1 {
				m.fault("frame %d was acknowledged %d times", n, s.ghost.acked[n])
			}
		}
	}
}

// anybody says whether a consumer takes part until the end.
func (m *model) anybody(s *state) bool {
	for c := range m.Consumers {
		if a := &s.cons[c]; !a.dead && s.seats[c] == active && a.pc != cOutside {
			return true
		}
	}
	return false
}

// full says whether a queue stays full for ever, because no consumer takes or releases its frames. A producer may then
// wait for ever.
func (m *model) full(s *state) bool {
	if !m.Queue || s.state != open || m.anybody(s) && !m.Hoards {
		return false
	}
	used := int8(0)
	for i := range m.n() {
		if e := s.order[i].number; !m.isDone(e, s.claims[i]) {
			used++
		}
	}
	return m.waiting(s) >= m.limit() || used == m.n()
}

// allNeeded says whether the channel or a consumer needs every block of a producer that waits for a block.
func (m *model) allNeeded(s *state, a *producer) bool {
	for _, f := range a.flying {
		if f == 0 {
			continue
		}
		k := s.claims[f%m.n()]
		need := !m.Queue && s.state < closed && f > s.tail.number-int8(m.Capacity) ||
			m.Queue && s.state != destroyed && (m.Hoards || !m.anybody(s) && m.waits(f, k))
		if !need {
			return false
		}
	}
	return true
}

// waiting counts the frames of a queue that no consumer has.
func (m *model) waiting(s *state) (count int8) {
	for i := range m.n() {
		if e := s.order[i].number; e > 0 && m.waits(e, s.claims[i]) {
			count++
		}
	}
	return count
}
