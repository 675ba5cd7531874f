package streammodel

// An errand is what the service does in one go: of the script of a configuration, or for a member that left or died.
type errand struct {
	kind errandKind
	who  int8 // consumer, or producer for producerGone
}

type errandKind int8

const (
	join errandKind = iota
	closeChannel
	consumerLeft
	consumerGone
	producerGone
)

// joined says whether a consumer's join is over.
func (v *service) joined(c int8) bool {
	busy := v.pc == sJoinTail || v.pc == sJoinFloor || v.pc == sJoinActive || v.pc == sJoinSwap
	return !(busy && v.who == c)
}

// errands are those that the service could begin now.
func (m *model) errands(s *state) (found []errand) {
	if int(s.service.step) < len(m.Script) {
		found = append(found, m.Script[s.service.step])
	}
	for c := range int8(m.Consumers) {
		a := &s.cons[c]
		if s.consumers[c].state == active && a.pc == cLeaving {
			found = append(found, errand{consumerLeft, c})
		}
		if a.dead && !s.service.cleaned[mostProducers+c] && s.consumers[c].state != free {
			found = append(found, errand{consumerGone, c})
		}
	}
	for p := range int8(m.Producers) {
		if s.producers[p].dead && !s.service.cleaned[p] {
			found = append(found, errand{producerGone, p})
		}
	}
	return found
}

// stepService takes the next step of the service; choice is the errand that it begins.
func (m *model) stepService(s *state, choice int8) bool {
	v := &s.service
	switch v.pc {
	case sNext:
		todo := m.errands(s)
		if int(choice) >= len(todo) {
			return false
		}
		m.begin(s, todo[choice])
		return m.stepService(s, 0)
	case sJoinTail:
		v.tail, v.pc = s.tail, sJoinFloor
	case sJoinFloor:
		start := v.tail.number + 1
		if m.Oldest {
			start = max(1, m.oldestKept(v.tail.number))
		}
		s.floor[v.who], s.next[v.who], s.ghost.start[v.who] = start, start, start
		v.pc = sJoinActive
		if s.consumers[v.who].state == active {
			v.pc = sJoinSwap
		}
	case sJoinActive:
		s.consumers[v.who] = slot{active, m.Policies[v.who]}
		s.version = (s.version + 1) % int8(m.Versions)
		v.pc = sJoinSwap
	case sJoinSwap:
		if s.tail != v.tail && !m.mutant("a joiner does not look again") {
			v.pc = sJoinTail
			return true
		}
		s.tail.version = s.version
		v.pc = sNext
	case sGone:
		s.consumers[v.who] = slot{state: free}
		s.holds[v.who] = [mostHolds]hold{}
		v.pc = sVersion
	case sClaims:
		for n := range s.claims {
			if k := &s.claims[n]; k.tag == claimedBy+v.who {
				k.tag = givenBack
			}
		}
		v.pc = sGone
	case sVersion:
		s.version = (s.version + 1) % int8(m.Versions)
		v.pc = sSwap
	case sClosing:
		s.state = closing
		v.pc = sVersion
	case sSwap:
		s.tail.version = s.version
		v.tail = s.tail
		v.wake, v.pc = 0, sBell
		if s.state == closing {
			v.pc = sEnd
		}
	case sEnd:
		s.end, s.state = v.tail.number, closed
		v.pc = sBell
	case sBell:
		v.seen = *m.word(s, v.wake)
		v.pc = sRing
		if v.seen&1 == 0 || m.mutant("the service wakes nobody") {
			m.belled(v)
		}
	case sRing:
		v.pc = sBell
		who := onPublished
		if v.wake == 1 {
			who = onFreed
		}
		if m.ring(s, m.word(s, v.wake), v.seen, who) {
			m.belled(v)
		}
	}
	return true
}

func (m *model) begin(s *state, e errand) {
	v := &s.service
	v.who = e.who
	switch e.kind {
	case join:
		v.step++
		v.pc = sJoinTail
		if s.cons[e.who].dead {
			v.pc = sVersion
		}
	case closeChannel:
		v.step++
		v.pc = sClosing
	case consumerLeft:
		s.cons[e.who].pc = cDone
		v.pc = sGone
	case consumerGone:
		v.cleaned[mostProducers+e.who] = true
		v.pc = sClaims
	case producerGone:
		v.cleaned[e.who] = true
		v.pc = sVersion
	}
}

func (m *model) word(s *state, which int8) *int8 {
	if which == 0 {
		return &s.published
	}
	return &s.freed
}

func (m *model) belled(v *service) {
	v.pc = sNext
	if v.wake == 0 {
		v.wake, v.pc = 1, sBell
	}
}
