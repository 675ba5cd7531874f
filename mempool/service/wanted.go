package service

import "time"

// Wanted tells a session with producers in channels of a pool, or with ranges there, that somebody waits for memory of the pool. The session
// then releases memory that its frames and ranges do not need any more, and memory that it keeps for the next ones and does not use.
type Wanted struct{ Pool uint64 }

func (Wanted) notice() {}

// wantedRest is the shortest time between two Wanted notices of a pool. As long as an allocation waits, the notice is repeated after
// this time.
const wantedRest = 200 * time.Millisecond

// WantedTime is how long a caller that got [mempool.ErrWanted] waits for the sessions that were told to release memory.
const WantedTime = 50 * time.Millisecond

// wantFor adds n (+1 or −1) to the number of the session's allocations that find no room. The caller holds Service.mu.
func (p *Pool) wantFor(s *Session, n int) {
	if p.wanting == nil {
		p.wanting = make(map[*Session]int)
	}
	if p.wanting[s] += n; p.wanting[s] == 0 {
		delete(p.wanting, s)
	}
}

// ask sends Wanted to the sessions that keep memory, unless they got it less than wantedRest ago. The result `told` is true if they got it
// within the last WantedTime. The caller holds Service.mu.
func (p *Pool) ask() (told bool) {
	now := time.Now()
	if now.Sub(p.asked) >= wantedRest {
		p.asked = now
		p.tellKeepers()
	}
	return p.keepers() && now.Sub(p.asked) < WantedTime
}

// keepers reports whether there are sessions that may keep memory for their next frames or ranges. The caller holds Service.mu.
func (p *Pool) keepers() bool { return len(p.rec.Producers) > 0 || len(p.dividers) > 0 }

// tellKeepers sends Wanted to these sessions. The caller holds Service.mu.
func (p *Pool) tellKeepers() {
	for s := range p.rec.Producers {
		p.svc.sessionOf(s).tellLocked(Wanted{Pool: p.rec.Info.ID})
	}
	for s := range p.dividers {
		if !s.writesIn(p) { // its arenas are gone
			delete(p.dividers, s)
		} else if p.rec.Producers[s.rec] == 0 {
			s.tellLocked(Wanted{Pool: p.rec.Info.ID})
		}
	}
}

// writesIn reports whether a session has a write lease in a pool. The caller holds Service.mu.
func (s *Session) writesIn(p *Pool) bool {
	for _, l := range s.rec.Leases {
		if l.Write && l.Buffer.Block.Pool == p.rec {
			return true
		}
	}
	return false
}

// want tries to get memory for an allocation that finds no room: it calls ask, and frees buffers that channels have kept after the
// producers left. It also starts a goroutine that runs wantOn, which calls want again after each wantedRest. The result `more` is true if
// channels freed buffers. The result `told` is the result of ask. The caller holds Service.mu.
func (p *Pool) want() (more, told bool) {
	if !p.streams && len(p.dividers) == 0 { // the pool has never had a channel, or a range
		return false, false
	}
	told = p.ask()
	changes := p.room.changes
	if now := time.Now(); now.Sub(p.tidied) >= wantedRest {
		p.tidied = now
		p.tidyLocked()
	}
	if len(p.wanting) > 0 && !p.asking {
		p.asking = true
		p.svc.drains.Go(p.wantOn)
	}
	return p.room.changes != changes, told
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

// tidyLocked calls channel.tidyLocked for the pool's channels that keep buffers of producers that left, except for channels that were tidied
// a moment ago.
func (p *Pool) tidyLocked() {
	now := time.Now()
	for rec := range p.svc.ledger.Channels.All() {
		if rec.Pool != p.rec || len(rec.Kept) == 0 {
			continue
		}
		if ch := p.svc.channels.of(rec); !now.Before(ch.rests) {
			ch.tidyLocked()
		}
	}
}
