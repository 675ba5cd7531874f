package shmchannel

// view is the copy of the roster that a producer has. The producer reads the roster again when the version of the roster has changed.
type view struct {
	known   bool
	version uint64
	active  bool     // this producer is active in the roster
	others  []int    // seats of the other active producers
	readers []reader // consumers that are active or may still use blocks
}

// reader is what a producer knows of one consumer.
type reader struct {
	*cursor
	peer   Peer
	policy Policy
	active bool
}

// blocks reports whether the channel must keep the frames that this consumer has not released.
func (r *reader) blocks() bool { return r.active && r.policy.blocks() }

// refreshView reads the roster again if the roster has changed since the last call. The caller has loaded tail t before. A change of the roster
// takes effect when the tail has the roster's new version. refreshView does not wait until the tail has the new version, because the service may
// stop before it stores this version there. Until the tail has the new version, refreshView ignores the change. After the channel is closed, the
// version in the tail does not change any more, and refreshView uses only the version in the roster.
//
// Errors: [UnknownMemberError]; [ErrCorrupt].
func (p *Producer) refreshView(t tail) error {
	for range maxRounds {
		v := p.roster.version.Load()
		if known := p.view.version; p.view.known && (v == known || v == known+1 && t.version() == known&1023 && p.roster.state.Load() == channelOpen) {
			return nil
		}
		p.view.known = false
		if err := p.readRoster(); err != nil {
			if p.roster.version.Load() != v { // the roster changed while it was read
				continue
			}
			return err
		}
		p.view.known, p.view.version, p.floor = true, v, 0
	}
	return corrupt("the roster changed during every attempt to read it")
}

func (p *Producer) readRoster() error {
	v, r := &p.view, p.roster
	v.active = r.producers[p.seat].active(p.id)
	v.others = v.others[:0]
	for i := range MaxProducers {
		if i != p.seat && r.producers[i].state.Load() == seatActive {
			v.others = append(v.others, i)
		}
	}
	v.readers = v.readers[:0]
	for i := range r.consumers {
		s := &r.consumers[i]
		state := s.state.Load()
		if state == seatFree {
			continue
		}
		peer := s.peer(i)
		if peer.ID == 0 { // the host frees the seat
			continue
		}
		c := p.cursors[i]
		if c == nil || c.id != peer.ID {
			return &UnknownMemberError{ConsumerRole, i, peer.ID}
		}
		v.readers = append(v.readers, reader{c, peer, Policy(s.policy.Load()), state == seatActive})
	}
	return nil
}
