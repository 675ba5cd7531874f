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

// delivery is a frame in somebody's hands.
type delivery struct {
	sub   *subscription
	frame *frame
}

// released says that the lease on the frame has ended, and whether the frame is to go to somebody else. Service.mu is held.
func (d *delivery) released(again bool) {
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
		n.Lease.frame = &delivery{sub, f}
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
