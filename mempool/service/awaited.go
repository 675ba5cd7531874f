package service

// awaited is a name that somebody waits for. Each has a signal of its own: what is published wakes those who wait for it and
// not all who wait for something. It is guarded by Service.mu.
type awaited struct {
	signal
	svc     *Service
	text    string
	waiters int
}

// await begins a wait for a name, which leave ends. Service.mu is held.
func (s *Service) await(text string) *awaited {
	a := s.awaited[text]
	if a == nil {
		a = &awaited{svc: s, text: text}
		s.awaited[text] = a
	}
	a.waiters++
	return a
}

func (a *awaited) leave() {
	a.svc.mu.Lock()
	defer a.svc.mu.Unlock()
	if a.waiters--; a.waiters == 0 {
		remove(&a.svc.awaited, &a.svc.most.awaited, a.text)
	}
}
