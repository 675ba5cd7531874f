package streammodel

// arm sets bit 0 of a futex word.
func (m *model) arm(word *int8, a *sleeper) {
	*word |= 1
	a.armed, a.seen = true, *word
}

// lie makes a member sleep if the word still has the value that the member has seen.
func (m *model) lie(word int8, a *sleeper, on futex) {
	same := word == a.seen
	*a = sleeper{}
	if same {
		a.on = on
	}
}

// wake handles one of the futex words in words. If a member sleeps on the word, wake changes the value of the word, and then
// wakes all members that sleep on the word. The member that runs wake can die between these two steps.
func (m *model) wake(s *state, words *futex, loaded *int8, at, first, second pc) pc {
	word := *words & -*words
	w := m.word(s, word)
	switch {
	case word == none:
		return first
	case at == second && m.mutant("a futex word is moved on by a store"):
		*w = *loaded + 1
		*loaded = 0
	case at == second:
	case *w&1 == 0:
		*words &^= word
		return first
	case m.mutant("a futex word is moved on by a store"):
		*loaded = *w
		return second
	default:
		*w++
		if m.Deaths > int(s.ghost.deaths) {
			return second
		}
	}
	m.rouse(s, word)
	*words &^= word
	return first
}

// advance changes a futex word and wakes all members that sleep on the word.
func (m *model) advance(s *state, word futex) {
	w := m.word(s, word)
	*w = (*w | 1) + 1
	m.rouse(s, word)
}

func (m *model) word(s *state, word futex) *int8 {
	if word == published {
		return &s.published
	}
	return &s.freed
}

// rouse wakes all members that sleep on a word.
func (m *model) rouse(s *state, word futex) {
	for p := range s.producers {
		if s.producers[p].sleep.on == word {
			s.producers[p].sleep = sleeper{}
		}
	}
	for c := range s.cons {
		if s.cons[c].sleep.on == word {
			s.cons[c].sleep = sleeper{}
		}
	}
}

// settleWords subtracts the smallest value that a member still knows from the values of futex words and tickets. Only
// the equality and the order of the values matter, so states that differ only in this value become equal.
func (m *model) settleWords(s *state) {
	oldest := s.tickets
	for p := range s.producers {
		for _, t := range [2]int8{s.producers[p].ticket, s.waiting[p]} {
			if t > 0 {
				oldest = min(oldest, t-1)
			}
		}
	}
	s.tickets -= oldest
	for p := range s.producers {
		if a := &s.producers[p]; a.ticket > 0 {
			a.ticket -= oldest
		}
		if s.waiting[p] > 0 {
			s.waiting[p] -= oldest
		}
	}
	low := [2]int8{s.published &^ 1, s.freed &^ 1}
	for p := range s.producers {
		if a := &s.producers[p].sleep; a.armed {
			low[1] = min(low[1], a.seen&^1)
		}
	}
	for c := range s.cons {
		if a := &s.cons[c].sleep; a.armed {
			low[0] = min(low[0], a.seen&^1)
		}
	}
	s.published -= low[0]
	s.freed -= low[1]
	for p := range s.producers {
		if a := &s.producers[p].sleep; a.armed {
			a.seen -= low[1]
		}
	}
	for c := range s.cons {
		if a := &s.cons[c].sleep; a.armed {
			a.seen -= low[0]
		}
	}
}
