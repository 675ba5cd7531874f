package service

import "time"

// Wanted tells a session that has producers in channels of a pool that memory of the pool is wanted: for a second, it gives back
// what it keeps for later.
type Wanted struct{ Pool uint64 }

func (Wanted) notice() {}

// wantedRest is how often, at most, a session is told that memory of a pool is wanted.
const wantedRest = 200 * time.Millisecond

// WantedTime is in what time a session that was told has given back what it can. A caller that got [mempool.ErrWanted] waits so long.
const WantedTime = 50 * time.Millisecond

// producing is what a pool knows of a session that has producers in channels.
type producing struct {
	members int
	asked   time.Time // when it was told that memory is wanted
}

// produce counts a producer of a session more (+1) or less (−1). Service.mu is held.
func (p *Pool) produce(s *Session, n int) {
	if p.producers == nil {
		p.producers = make(map[*Session]*producing)
	}
	have := p.producers[s]
	if have == nil {
		have = new(producing)
		p.producers[s] = have
	}
	if have.members += n; have.members == 0 {
		delete(p.producers, s)
	}
}

// wantFor counts an allocation of a session that finds no room more (+1) or less (−1). Service.mu is held.
func (p *Pool) wantFor(s *Session, n int) {
	if p.wanting == nil {
		p.wanting = make(map[*Session]int)
	}
	if p.wanting[s] += n; p.wanting[s] == 0 {
		delete(p.wanting, s)
	}
}

// wantedByOthers says whether another session than s waits for memory.
func (p *Pool) wantedByOthers(s *Session) bool {
	others := len(p.wanting)
	if p.wanting[s] > 0 {
		others--
	}
	return others > 0
}

// ask tells the sessions that have producers that others want memory, and says whether one was told just now, by this call or by another.
// A session whose own allocation waits looks by itself for what comes back to it. all tells every session, those too that were told a
// moment ago. Service.mu is held.
func (p *Pool) ask(all bool) (told bool) {
	now := time.Now()
	for s, have := range p.producers {
		if !all && !p.wantedByOthers(s) {
			continue
		}
		if all || now.Sub(have.asked) >= wantedRest {
			have.asked = now
			s.tell(Wanted{Pool: p.info.ID})
		}
		told = told || now.Sub(have.asked) < WantedTime
	}
	return told
}

// want asks for memory on behalf of an allocation that finds no room, now and again and again while one waits: other sessions that have
// producers, and channels that keep buffers of producers that left. It says whether channels gave something back, and whether a session
// was told now. Service.mu is held.
func (p *Pool) want() (more, told bool) {
	if p.lent == nil { // there has been no channel
		return false, false
	}
	told = p.ask(false)
	changes := p.waiters.changes
	if now := time.Now(); now.Sub(p.tidied) >= wantedRest {
		p.tidied = now
		p.tidy()
	}
	if len(p.wanting) > 0 && !p.asking {
		p.asking = true
		p.svc.drains.Go(p.wantOn)
	}
	return p.waiters.changes != changes, told
}

// wantOn asks while an allocation waits.
func (p *Pool) wantOn() {
	for again := true; again; {
		select {
		case <-time.After(wantedRest):
		case <-p.svc.closing:
		}
		p.svc.mu.Lock()
		again = len(p.wanting) > 0 && !p.svc.closed
		p.asking = again
		if again {
			p.want()
		}
		p.svc.unlock()
	}
}

// tidy looks at the pool's channels that keep buffers of producers that left, but for those that were looked at a moment ago.
// Service.mu is held.
func (p *Pool) tidy() {
	now := time.Now()
	for _, ch := range p.svc.channelByID {
		if ch.pool == p && len(ch.kept) > 0 && !now.Before(ch.rests) {
			ch.tidy()
		}
	}
}
