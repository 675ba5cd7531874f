package mempool

// broadcastFull says why the oldest frame of a full broadcast cannot be dropped: nil if it can. Service.mu is held.
func (ch *channel) broadcastFull() error {
	oldest := ch.frames[0].number
	var slow *subscription
	for _, sub := range ch.subs {
		if !sub.policy.holds() || !sub.needs(oldest) {
			continue
		}
		if sub.policy == Fail {
			return situation(ErrLimit, "channel %q is full: session %d (pid %d) has not acknowledged frame %d of %d, and its policy is to fail",
				ch.info.Name, sub.session.id, sub.session.peer.PID, oldest, ch.last)
		}
		if slow == nil || sub.next < slow.next {
			slow = sub
		}
	}
	if slow == nil {
		return nil
	}
	return situation(ErrTimeout, "channel %q is full: the slowest is session %d (pid %d), which has not acknowledged frame %d of %d",
		ch.info.Name, slow.session.id, slow.session.peer.PID, oldest, ch.last)
}

// needs says whether the subscriber was not sent a frame yet or has not acknowledged it.
func (sub *subscription) needs(number uint64) bool {
	_, held := sub.held[number]
	return held || sub.next <= number
}

// keep adds a frame to a broadcast that is not full, or whose oldest frame nobody holds. Service.mu is held.
func (ch *channel) keep(f *frame) {
	if len(ch.frames) == ch.info.Capacity {
		ch.drop()
	}
	ch.frames = append(ch.frames, f)
}

// handBroadcast sends every subscriber what it has not seen, as far as its credit goes. Service.mu is held.
func (ch *channel) handBroadcast() {
	for i := 0; i < len(ch.subs); i++ {
		sub := ch.subs[i]
		for sub.credit > 0 && len(ch.frames) > 0 && sub.next <= ch.last {
			f := ch.frames[0]
			if sub.policy == Latest {
				f = ch.frames[len(ch.frames)-1]
			} else if sub.next > f.number {
				f = ch.frames[sub.next-f.number]
			}
			missed := f.number - sub.next
			sub.next = f.number + 1
			sub.deliver(f, missed)
		}
		if ch.over() && (sub.next > ch.last || len(ch.frames) == 0) {
			sub.end(nil)
			i--
		}
	}
	if ch.over() {
		ch.dropSeen()
	}
}

// dropSeen drops the frames that everybody has been sent, after which nobody will ask for them. Service.mu is held.
func (ch *channel) dropSeen() {
	for len(ch.frames) > 0 {
		for _, sub := range ch.subs {
			if sub.next <= ch.frames[0].number {
				return
			}
		}
		ch.drop()
	}
}
