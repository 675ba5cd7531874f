package service

// awaited is a name that requests wait for. Each name has its own signal, so that a publication wakes only the requests that wait for
// that name. It is guarded by Service.mu.
type awaited struct {
	signal
	svc     *Service
	text    string
	waiters int
}

// await begins a wait for a name; awaited.leave ends it. Service.mu is held.
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
