package mempool

import "fmt"

// queueFull says why nothing more can wait in a full queue: nil if something is to be dropped for it. Service.mu is held.
func (ch *channel) queueFull() error {
	if !ch.info.Full.holds() {
		return nil
	}
	sentinel, slow := ErrTimeout, ""
	if ch.info.Full == Fail {
		sentinel = ErrLimit
	}
	var most *subscription
	for _, sub := range ch.subs {
		if most == nil || len(sub.held) > len(most.held) {
			most = sub
		}
	}
	if most == nil {
		slow = "nobody is subscribed to it"
	} else {
		slow = fmt.Sprintf("the slowest is session %d (pid %d), which has not acknowledged %d frames", most.session.id, most.session.peer.PID,
			len(most.held))
	}
	return situation(sentinel, "queue %q is full: %d frames wait, and %s", ch.info.Name, len(ch.frames), slow)
}

// enqueue adds a frame to a queue, in place of others if it is full. Service.mu is held.
func (ch *channel) enqueue(f *frame) {
	if ch.info.Full == Latest {
		for len(ch.frames) > 0 {
			ch.drop()
			ch.missed++
		}
	}
	for len(ch.frames) >= ch.info.Capacity {
		ch.drop()
		ch.missed++
	}
	ch.frames = append(ch.frames, f)
}

// handQueue hands the frames that wait to the subscribers that have credit, in turn. Service.mu is held.
func (ch *channel) handQueue() {
	for len(ch.frames) > 0 {
		sub := ch.nextInTurn()
		if sub == nil {
			return
		}
		f := ch.frames[0]
		ch.frames[0] = nil
		ch.frames = ch.frames[1:]
		missed := ch.missed
		ch.missed = 0
		sub.deliver(f, missed)
		ch.room.broadcast()
	}
	if ch.over() && ch.flying == 0 {
		for len(ch.subs) > 0 {
			ch.subs[0].end(nil)
		}
	}
}

// nextInTurn is the next subscriber that has credit, nil if none has.
func (ch *channel) nextInTurn() *subscription {
	for range ch.subs {
		ch.turn = (ch.turn + 1) % len(ch.subs)
		if sub := ch.subs[ch.turn]; sub.credit > 0 {
			return sub
		}
	}
	return nil
}
