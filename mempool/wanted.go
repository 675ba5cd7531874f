package mempool

import "time"

// Wanted tells a session that has producers in a pool that memory of the pool is wanted: for a second, it gives back what it keeps
// for later.
type Wanted struct{ Pool uint64 }

func (Wanted) notice() {}

// wantedRest is how often a session is told, at most, that memory of a pool is wanted.
const wantedRest = 200 * time.Millisecond

// producing is what a pool knows of a session that has producers in shared channels.
type producing struct {
	members int
	asked   time.Time // when it was told that memory is wanted
}

// produce counts a producer of a session more (+1) or less (−1). Service.mu is held.
func (p *Pool) produce(s *Session, n int) {
	at := p.producers[s]
	if at == nil {
		if p.producers == nil {
			p.producers = make(map[*Session]*producing)
		}
		at = new(producing)
		p.producers[s] = at
	}
	if at.members += n; at.members == 0 {
		delete(p.producers, s)
	}
	if n > 0 && p.wanting > 0 {
		p.want(false)
	}
}

// want asks those for memory who may have some: sessions with producers, and channels that keep buffers of producers that left. It does so
// again and again while an allocation waits. now asks those too who were asked a moment ago. Service.mu is held.
func (p *Pool) want(now bool) {
	at := time.Now()
	for s, have := range p.producers {
		if now || at.Sub(have.asked) >= wantedRest {
			have.asked = at
			s.tell(Wanted{Pool: p.info.ID})
		}
	}
	if p.lent == nil {
		return
	}
	if at.Sub(p.tidied) >= wantedRest {
		p.tidied = at
		p.tidy()
	}
	if p.wanting > 0 && !p.wants {
		p.wants = true
		p.svc.drains.Go(p.wantOn)
	}
}

// wantOn asks while an allocation waits.
func (p *Pool) wantOn() {
	for again := true; again; {
		select {
		case <-time.After(wantedRest):
		case <-p.svc.closing:
		}
		p.svc.mu.Lock()
		if again = p.wanting > 0 && !p.svc.closed; again {
			p.want(false)
		}
		p.wants = again
		p.svc.unlock()
	}
}

// tidy looks at the pool's channels that keep buffers of producers that left. Service.mu is held.
func (p *Pool) tidy() {
	for _, ch := range p.svc.channelByID {
		if ch.pool == p && ch.shared != nil && len(ch.shared.kept) > 0 {
			ch.shared.tidy()
		}
	}
}
