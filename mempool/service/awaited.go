package service

import "github.com/poolbridge/poolbridge/mempool/service/ledger"

// await begins a wait for a name; awaitedName.leave ends the wait. The caller holds Service.mu.
func (as *awaitedNames) await(text string) *awaitedName {
	a := as.all[text]
	if a == nil {
		a = &awaitedName{names: as, text: text}
		as.all[text] = a
	}
	a.waiting++
	return a
}

// broadcast wakes the requests that wait for a name. The caller holds Service.mu.
func (as *awaitedNames) broadcast(text string) {
	if a := as.all[text]; a != nil {
		a.broadcast()
	}
}

func (a *awaitedName) leave() {
	as := a.names
	as.svc.mu.Lock()
	defer as.svc.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		ledger.RemoveKey(&as.all, &as.most, a.text)
	}
}
