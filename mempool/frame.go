package mempool

import (
	"slices"
	"time"
)

// frame is a buffer in a channel. It is guarded by Service.mu.
type frame struct {
	number uint64 // in its channel, from 1
	sent   time.Time
	meta   map[string]string
	buffer *buffer
}

// let ends the frame's hold on its buffer. Service.mu is held.
func (f *frame) let() {
	f.buffer.frames--
	f.buffer.settle()
}

// drop drops the oldest frame of the channel. Service.mu is held.
func (ch *channel) drop() {
	f := ch.frames[0]
	ch.frames[0] = nil
	ch.frames = ch.frames[1:]
	f.let()
}

// Delivered hands a subscriber a frame: with a read lease, or with an error that says why this one cannot be had.
type Delivered struct {
	Subscription uint64
	Seq          uint64
	Time         time.Time
	Meta         map[string]string
	Dropped      uint64 // frames that were missed since the last
	Lease        *Lease
	Err          error

	// Info describes the lease; its tensor must not be changed. Mapped says that the session has the block's export. Both are
	// for a session of another process.
	Info   LeaseInfo
	Mapped bool
}

// Ended says that no frame will come for a subscription any more; Err is nil if the channel was shut.
type Ended struct {
	Subscription uint64
	Err          error
}

func (Delivered) notice() {}
func (Ended) notice()     {}

// delivery is a frame that a subscriber was sent. It is settled once: acknowledged, or given back to its queue.
type delivery struct {
	sub     *subscription
	frame   *frame
	settled bool
}

// settle acknowledges the frame, or with again gives it back to its queue, and gives its credit back. Nothing happens if the
// frame was settled before. Service.mu is held.
func (d *delivery) settle(again bool) {
	if !d.settled && d.sub.lives() {
		d.sub.credit++
	}
	d.withdraw(again)
}

// settleAhead is settle while the frame's lease lives on. A subscriber that has as many leases as it may gets no more frames:
// its subscription ends. Service.mu is held.
func (d *delivery) settleAhead(again bool) {
	if !d.settled && d.sub.lives() {
		if err := d.sub.session.mayHold(); err != nil {
			d.sub.end(err)
		}
	}
	d.settle(again)
}

// withdraw is settle for a frame that the subscriber is not told of: its credit stays used. Service.mu is held.
func (d *delivery) withdraw(again bool) {
	if d.settled {
		return
	}
	d.settled = true
	ch := d.sub.channel
	delete(d.sub.held, d.frame.number)
	if ch.info.Mode == WorkQueue {
		ch.flying--
		if again && ch.pool.svc.channelByID[ch.info.ID] == ch && !ch.pool.closing {
			ch.giveBack(d.frame)
		} else {
			d.frame.let()
		}
	}
	ch.room.broadcast()
	ch.hand()
}

// Ack acknowledges the frame that a lease of the session's came with: in a queue it goes to nobody else, in a broadcast it
// holds no sender back any more. The lease, and with it the memory, lives on.
//
// Errors: those of [Session.FindLease], [ErrClosed]; [ErrInvalid] for a lease that came with no frame, [ErrSettled] for a frame
// that was acknowledged or given back before.
func (s *Session) Ack(lease uint64) error { return s.settleFrame(lease, false) }

// Requeue gives the frame that a lease of the session's came with back to its queue, in its place: another subscriber gets
// it. The lease, and with it the memory, lives on.
//
// Errors: those of [Session.Ack]; [ErrInvalid] for a frame of a broadcast.
func (s *Session) Requeue(lease uint64) error { return s.settleFrame(lease, true) }

func (s *Session) settleFrame(lease uint64, again bool) error {
	svc := s.svc
	svc.mu.Lock()
	defer svc.unlock()
	if err := s.alive(); err != nil {
		return err
	}
	l, err := s.findLease(lease)
	if err != nil {
		return err
	}
	if l.frame == nil {
		return situation(ErrInvalid, "lease %d came with no frame: there is nothing to acknowledge", lease)
	}
	return l.frame.decide(again)
}

// decide settles the frame because the subscriber says so. Service.mu is held.
func (d *delivery) decide(again bool) error {
	ch := d.sub.channel
	switch {
	case again && ch.info.Mode != WorkQueue:
		return situation(ErrInvalid, "channel %q is a broadcast, to which no frame is given back: every subscriber has its own; release it",
			ch.info.Name)
	case d.settled:
		return situation(ErrSettled, "frame %d of channel %q was acknowledged or given back before", d.frame.number, ch.info.Name)
	}
	d.settleAhead(again)
	return nil
}

// Withdraw ends a lease that came with a frame of which its session cannot be told. The frame's credit stays used.
func (l *Lease) Withdraw() {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.unlock()
	l.frame.withdraw(true)
	if !l.ended { // the session may have
		l.end(true, nil)
	}
}

// giveBack puts a frame back where it was in the queue. Service.mu is held.
func (ch *channel) giveBack(f *frame) {
	i, _ := slices.BinarySearchFunc(ch.frames, f, func(a, b *frame) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	ch.frames = slices.Insert(ch.frames, i, f)
}

// deliver hands a frame to a subscriber that has credit. Service.mu is held.
func (sub *subscription) deliver(f *frame, missed uint64) {
	sub.credit--
	n := Delivered{Subscription: sub.id, Seq: f.number, Time: f.sent, Meta: f.meta, Dropped: missed}
	if err := f.buffer.available(false); err != nil {
		n.Err = err
		if sub.channel.info.Mode == WorkQueue {
			f.let()
		}
		sub.channel.room.broadcast() // nobody will release it
	} else {
		n.Lease = f.buffer.grant(sub.session, false)
		n.Lease.frame = &delivery{sub: sub, frame: f}
		if s := sub.session; s.notify != nil {
			n.Info = n.Lease.describe()
			_, n.Mapped = s.mapped[f.buffer.block.id]
		}
		sub.held[f.number] = struct{}{}
		if sub.channel.info.Mode == WorkQueue {
			sub.channel.flying++
		}
	}
	sub.tell(n)
}
