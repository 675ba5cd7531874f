package mempool

import "slices"

// subscription is a session's wish for a channel's frames. It is guarded by Service.mu.
type subscription struct {
	id      uint64
	session *Session
	channel *channel
	policy  FullPolicy
	credit  int                 // how many frames more it may be sent
	begun   bool                // its session knows its id
	over    *Ended              // to be told once it does
	next    uint64              // number of the next frame of a broadcast
	held    map[uint64]struct{} // numbers of the frames that were sent and not settled
	inbox   []Notice            // of a session of this process
	arrived signal              // in the inbox
}

// Subscribe asks for a channel's frames, which come as [Delivered] once credit is given with [Session.Credit], and at last
// an [Ended]. The credit of o is not given yet: the session must first be able to tell what a frame is for.
//
// Errors: [ErrNotFound], [ErrInvalid], [ErrDenied], [ErrLimit], [ErrClosed].
func (s *Session) Subscribe(channel uint64, o SubscribeOptions) (uint64, error) {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	sub, err := s.subscribe(channel, o)
	if err != nil {
		return 0, err
	}
	return sub.id, nil
}

// subscribe is Subscribe with Service.mu held.
func (s *Session) subscribe(id uint64, o SubscribeOptions) (*subscription, error) {
	ch, err := s.channel(id)
	if err == nil {
		err = ch.unshared("subscribed to")
	}
	if err != nil {
		return nil, err
	}
	if o.Full != "" {
		if err := o.Full.validate(); err != nil {
			return nil, err
		}
		if ch.info.Mode == WorkQueue {
			return nil, situation(ErrInvalid, "channel %q is a queue, whose policy is for all: a subscriber has none of its own", ch.info.Name)
		}
	} else {
		o.Full = ch.info.Full
	}
	if !s.ordered {
		return nil, situation(ErrInvalid, "session %d understands no timelines, and frames come with tickets", s.id)
	}
	if err := s.maySubscribe(); err != nil {
		return nil, err
	}
	if err := s.mayHold(); err != nil { // the leases of those before live on
		return nil, err
	}
	s.svc.lastSubscription++
	sub := &subscription{id: s.svc.lastSubscription, session: s, channel: ch, policy: o.Full, held: make(map[uint64]struct{}), next: ch.last + 1}
	if n := len(ch.frames); n > 0 && ch.info.Mode == Broadcast {
		first := n - 1
		if o.Oldest {
			first = 0
		}
		sub.next = ch.frames[first].number
	}
	s.subscriptions[sub.id] = sub
	ch.subs = append(ch.subs, sub)
	return sub, nil
}

// maySubscribe says whether the session may have one more subscription, or one more member of a shared channel. Service.mu is held.
func (s *Session) maySubscribe() error {
	if n := len(s.subscriptions) + len(s.members); n >= MaxSubscriptions {
		return situation(ErrLimit, "session %d has %d subscriptions and members of channels, and no more at a time: leave some channels, or drop arrays of closed subscriptions, or connect once more", s.id, n)
	}
	return nil
}

// subscription finds one of the session's own subscriptions. Service.mu is held.
func (s *Session) subscription(id uint64) (*subscription, error) {
	if err := s.alive(); err != nil {
		return nil, err
	}
	sub := s.subscriptions[id]
	switch {
	case sub == nil && (id == 0 || id > s.svc.lastSubscription):
		return nil, situation(ErrNotFound, "there is no subscription %d", id)
	case sub == nil:
		return nil, situation(ErrClosed, "session %d has no subscription %d: it has ended, or it is another session's", s.id, id)
	}
	return sub, nil
}

// Credit lets n more frames come.
//
// Errors: [ErrNotFound], [ErrClosed] if the subscription has ended, [ErrInvalid] beyond the limit of credit, [ErrLimit] for a
// session that has as many leases as it may.
func (s *Session) Credit(id, n uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	sub, err := s.subscription(id)
	if err != nil {
		return err
	}
	if has := sub.credit + len(sub.held); n > MaxCredit || has+int(n) > MaxCredit {
		return situation(ErrInvalid, "%d more than the credit of %d that subscription %d has, frames that it has not acknowledged included: at most %d",
			n, has, id, MaxCredit)
	}
	sub.begun = true
	if sub.over != nil {
		delete(s.subscriptions, id)
		sub.tell(*sub.over)
		return nil
	}
	if err := s.mayHold(); err != nil {
		return err
	}
	sub.credit += int(n)
	sub.channel.hand()
	return nil
}

// lives says whether the subscription has not ended. Service.mu is held.
func (sub *subscription) lives() bool { return sub.session.subscriptions[sub.id] == sub }

// Unsubscribe ends a subscription. Leases that came with its frames live on, and frames that are not settled can still be.
//
// Errors: [ErrNotFound] for an id that no subscription ever had, [ErrClosed] for one that has ended or is another session's.
func (s *Session) Unsubscribe(id uint64) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	sub, err := s.subscription(id)
	if err != nil {
		return err
	}
	sub.leave()
	return nil
}

// leave takes the subscription out of its channel. Service.mu is held.
func (sub *subscription) leave() {
	ch := sub.channel
	delete(sub.session.subscriptions, sub.id)
	i := slices.Index(ch.subs, sub)
	if i < 0 {
		return
	}
	ch.subs = slices.Delete(ch.subs, i, i+1)
	sub.credit = 0
	sub.policy = DropOldest // whatever it has in hand holds nobody back
	ch.room.broadcast()
	ch.settle()
}

// end tells the subscriber that nothing more comes. Service.mu is held.
func (sub *subscription) end(err error) {
	sub.leave()
	over := Ended{Subscription: sub.id, Err: err}
	if !sub.begun {
		sub.over = &over
		sub.session.subscriptions[sub.id] = sub
		return
	}
	sub.tell(over)
}

// tell gives the subscriber a notice. Service.mu is held.
func (sub *subscription) tell(n Notice) {
	if sub.session.notify != nil {
		sub.session.tell(n)
		return
	}
	sub.inbox = append(sub.inbox, n)
	sub.arrived.broadcast()
}
