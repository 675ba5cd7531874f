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

// count adds n (+1 or −1) to the number of the session's allocations that find no room. The caller holds Service.mu.
func (d *demand) count(s *Session, n int) {
	if d.wanting[s] += n; d.wanting[s] == 0 {
		delete(d.wanting, s)
	}
}

// dividedBy notes that a session has made a range. Such a session learns only from Wanted that it may release the range's memory. The caller
// holds Service.mu.
func (d *demand) dividedBy(s *Session) { d.dividers[s] = struct{}{} }

// ask sends Wanted to the sessions that may have memory to release, unless they got it less than wantedRest ago. The result `told` is true if
// they got it within the last WantedTime. The caller holds Service.mu.
func (d *demand) ask() (told bool) {
	now := time.Now()
	if now.Sub(d.asked) >= wantedRest {
		d.asked = now
		d.tell()
	}
	return len(d.pool.rec.Producers)+len(d.dividers) > 0 && now.Sub(d.asked) < WantedTime
}

// tell sends Wanted to the sessions that may have memory for their next frames or ranges. The caller holds Service.mu.
func (d *demand) tell() {
	p := d.pool
	for s := range p.rec.Producers {
		p.svc.sessionOf(s).tellLocked(Wanted{Pool: p.rec.Info.ID})
	}
	for s := range d.dividers {
		if !s.rec.WritesIn(p.rec) { // its arenas are gone
			delete(d.dividers, s)
		} else if p.rec.Producers[s.rec] == 0 {
			s.tellLocked(Wanted{Pool: p.rec.Info.ID})
		}
	}
}

// meet tries to get memory for an allocation that finds no room: it calls ask, and frees buffers that channels have retained after the
// producers left. It also starts a goroutine that runs meetAgain, which calls meet again after each wantedRest. The result `more` is true if
// channels freed buffers. The result `told` is the result of ask. The caller holds Service.mu.
func (d *demand) meet() (more, told bool) {
	if !d.streams && len(d.dividers) == 0 { // the pool has never had a channel, or a range
		return false, false
	}
	told = d.ask()
	changes := d.pool.room.changes
	if now := time.Now(); now.Sub(d.tidied) >= wantedRest {
		d.tidied = now
		d.tidyLocked()
	}
	if len(d.wanting) > 0 && !d.asking {
		d.asking = true
		d.pool.svc.drains.Go(d.meetAgain)
	}
	return d.pool.room.changes != changes, told
}

// As long as an allocation finds no room, meetAgain calls meet again after each pause of wantedRest.
func (d *demand) meetAgain() {
	svc := d.pool.svc
	for again := true; again; {
		select {
		case <-time.After(wantedRest):
		case <-svc.closing:
		}
		svc.mu.Lock()
		again = len(d.wanting) > 0 && !svc.closed
		d.asking = again
		if again {
			d.meet()
		}
		svc.freeAndUnlock()
	}
}

// tidyLocked calls channel.tidyLocked for the pool's channels that retain buffers of producers that left, except for channels that were tidied
// a moment ago.
func (d *demand) tidyLocked() {
	now, svc := time.Now(), d.pool.svc
	for rec := range svc.ledger.Channels.All() {
		if rec.Pool != d.pool.rec || len(rec.Retained) == 0 {
			continue
		}
		if ch := svc.channels.of(rec); !now.Before(ch.rests) {
			ch.tidyLocked()
		}
	}
}
