package service

import "time"

// Wanted tells a session with producers in channels of a pool that other sessions need memory of the pool. For one second, the session
// then releases buffers that it would otherwise keep for its next frames.
type Wanted struct{ Pool uint64 }

func (Wanted) notice() {}

// wantedRest is the shortest time between two Wanted notices of a pool to one session.
const wantedRest = 200 * time.Millisecond

// WantedTime is how long a caller that got [mempool.ErrWanted] waits for the sessions that were told to release memory.
const WantedTime = 50 * time.Millisecond

// producing has what a pool knows about a session that has producers in channels of the pool.
type producing struct {
	members int
	asked   time.Time // when the last Wanted was sent
}

// produce adds n (+1 or −1) to the number of the session's producers. The caller holds Service.mu.
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

// wantFor adds n (+1 or −1) to the number of the session's allocations that find no room. The caller holds Service.mu.
func (p *Pool) wantFor(s *Session, n int) {
	if p.wanting == nil {
		p.wanting = make(map[*Session]int)
	}
	if p.wanting[s] += n; p.wanting[s] == 0 {
		delete(p.wanting, s)
	}
}

// wantedByOthers says whether an allocation of another session than s finds no room.
func (p *Pool) wantedByOthers(s *Session) bool {
	others := len(p.wanting)
	if p.wanting[s] > 0 {
		others--
	}
	return others > 0
}

// ask sends Wanted to the sessions with producers. ask skips a session if no other session wants memory: a session that wants memory itself
// takes its own buffers back without a notice. It also skips a session that got Wanted less than wantedRest ago. If `all` is true, ask
// skips no session. The result `told` is true if a session got Wanted within the last WantedTime. The caller holds Service.mu.
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

// want tries to get memory for an allocation that finds no room: it calls ask, and frees buffers that channels have kept after the
// producers left. It also starts a goroutine that runs wantOn, which calls want again after each wantedRest. The result `more` is true if
// channels freed buffers. The result `told` is the result of ask. The caller holds Service.mu.
func (p *Pool) want() (more, told bool) {
	if p.lent == nil { // the pool has never had a channel
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

// As long as an allocation finds no room, wantOn calls want again after each pause of wantedRest.
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

// tidy calls channel.tidy for the pool's channels that keep buffers of producers that left, except for channels that were tidied a moment
// ago. The caller holds Service.mu.
func (p *Pool) tidy() {
	now := time.Now()
	for ch := range p.svc.channelByID.all() {
		if ch.pool == p && len(ch.kept) > 0 && !now.Before(ch.rests) {
			ch.tidy()
		}
	}
}
