package service

import "github.com/poolbridge/poolbridge/mempool/service/ledger"

// await begins a wait for a name; awaited.leave ends the wait. The caller holds Service.mu.
func (s *Service) await(text string) *awaited {
	a := s.awaited[text]
	if a == nil {
		a = &awaited{svc: s, text: text}
		s.awaited[text] = a
	}
	a.waiting++
	return a
}

func (a *awaited) leave() {
	a.svc.mu.Lock()
	defer a.svc.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		ledger.RemoveKey(&a.svc.awaited, &a.svc.most.awaited, a.text)
	}
}
