package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// frameRecord is the record of a frame in a channel, with its description.
type frameRecord struct {
	shmchannel.Record
	description shmchannel.Description
}

// Publish publishes the memory of a write lease as a frame, and ends the lease. It returns the frame's number.
func (ch *Channel) Publish(ctx context.Context, try session.Attempt, l *session.Lease, o mempool.FrameOptions) (uint64, error) {
	sent := &sending{}
	if err := sent.record.pack(&o); err != nil {
		return 0, err
	}
	l.Lock()
	defer l.Unlock()
	if err := l.AliveLocked(); err != nil {
		return 0, fmt.Errorf("%w; if it was published, the channel has its memory now: allocate a lease for each frame", err)
	}
	t, err := ch.fits(l.InfoLocked(), o.Tensor)
	if err != nil {
		return 0, err
	}
	p, err := ch.producer(ctx)
	if err != nil {
		return 0, l.UnjoinedLocked(ctx, err, o.Completion)
	}
	ready, err := l.ReadyLocked(ctx, o.Completion, sent.back.Load)
	if err != nil {
		return 0, err
	}
	info := *l.InfoLocked()
	sent.wait = append(sent.wait, info.Wait...)
	info.Wait, info.Event = nil, nil
	sent.info, sent.own = &info, l.AllocatedLocked()
	if ready != nil {
		sent.wait = append(sent.wait, *ready)
	}
	r := &sent.record
	if err := r.place(&info, t, info.Base); err != nil {
		return 0, err
	}
	if err := r.fill(&o, ready, p.timeline); err != nil {
		return 0, err
	}
	r.Owner = sent
	number, err := p.publish(ctx, try, &r.Record)
	if err != nil {
		return 0, l.UnsentLocked(ctx, err, ready)
	}
	defer l.Forget()
	ch.streams.startTicks()
	return number, l.SentLocked()
}

// fits checks whether the buffer of a lease can go into the channel. It returns the description of the content: `t`, or the lease's own
// description if `t` is nil.
func (ch *Channel) fits(info *mempool.Grant, t *mempool.Tensor) (*mempool.Tensor, error) {
	switch {
	case !info.Write:
		return nil, typed.Errorf(mempool.ErrInvalid, "lease %d is a read lease; a frame is sent with a write lease", info.ID)
	case info.Pool != ch.Identity.Pool:
		return nil, typed.Errorf(mempool.ErrInvalid, "lease %d is of pool %d; channel %q carries buffers of pool %d", info.ID, info.Pool, ch.Identity.Name,
			ch.Identity.Pool)
	case t == nil:
		return &info.Tensor, nil
	}
	n, err := t.Extent()
	if err == nil && n > info.Bytes {
		err = typed.Errorf(mempool.ErrInvalid, "%s%v needs %d bytes, the buffer of lease %d has %d", t.DType, t.Shape, n, info.ID, info.Bytes)
	}
	return t, err
}

// place writes where the memory of a frame with the tensor t is: the memory of `info`, which begins at the byte `base` of its block.
func (r *frameRecord) place(info *mempool.Grant, t *mempool.Tensor, base uint64) (err error) {
	r.at(info)
	r.Description = &r.description
	r.description, err = describe(t, base)
	return err
}

// at writes which memory the frame has.
func (r *frameRecord) at(info *mempool.Grant) {
	r.Block, r.Buffer, r.Bytes = info.Block, info.Buffer, info.Bytes
}

// fill writes the rest of the record. own is the id of the client's own timeline.
func (r *frameRecord) fill(o *mempool.FrameOptions, ready *mempool.Fence, own uint64) error {
	r.Event, r.Ready = o.Handle(ready), shmchannel.Fence{}
	if ready != nil {
		if ready.Timeline != own {
			return typed.Errorf(mempool.ErrInvalid, "a fence of timeline %d cannot say when content of this session is complete: its own is %d", ready.Timeline, own)
		}
		if err := ready.Validate(); err != nil {
			return err
		}
		r.Ready = shmchannel.Fence{Timeline: own, Word: ready.Word, Value: ready.Value}
	}
	return nil
}

// pack writes the meta of the record.
func (r *frameRecord) pack(o *mempool.FrameOptions) (err error) {
	if r.Meta, err = shmchannel.AppendMeta(r.Meta[:0], o.Meta); err != nil {
		return typed.Errorf(mempool.ErrInvalid, "%v", err)
	}
	return nil
}

// describe returns the description of a frame with the tensor t. The frame's memory begins at the byte `base` of its block.
//
// Errors: [mempool.ErrInvalid] for too many arrays.
func describe(t *mempool.Tensor, base uint64) (shmchannel.Description, error) {
	d := shmchannel.Description{Base: base, Offset: t.ByteOffset, DType: string(t.DType), Shape: t.Shape, Strides: t.Strides}
	if t.Arrays == nil {
		return d, nil
	}
	var err error
	if d.Layout, err = wire.AppendLayout(nil, convert.WireLayout(t.Arrays)); err != nil {
		err = typed.Errorf(mempool.ErrInvalid, "%d arrays in one frame: %v", len(t.Arrays), err)
	}
	return d, err
}

// publish publishes a record in the channel.
func (p *Producer) publish(ctx context.Context, try session.Attempt, r *shmchannel.Record) (uint64, error) {
	if err := p.session.Over(); err != nil {
		return 0, err
	}
	number, err := p.shm.TryPublish(r)
	if err != nil {
		began := time.Now()
		number, err = p.publishInTime(ctx, try, r)
		p.waits.Over(began, err == nil)
	}
	if _, isLease := r.Owner.(*sending); isLease && err == nil && p.wanted.Load() > 0 {
		p.beginDrain() // the notice came when the channel had no memory; a chunk's arena is in use, so it does not go back
	}
	return number, err
}

// publishInTime is like publish, but waits for room and for the files of new consumers.
func (p *Producer) publishInTime(caller context.Context, try session.Attempt, r *shmchannel.Record) (uint64, error) {
	send := func() (uint64, error) { return p.shm.Publish(&patient{Context: caller, session: p.session}, r) }
	if try == session.Once {
		send = func() (uint64, error) { return p.shm.TryPublish(r) }
	}
	for {
		number, err := send()
		if err == nil {
			return number, nil
		}
		unknown, isUnknown := errors.AsType[*shmchannel.UnknownMemberError](err)
		full, isFull := errors.AsType[*shmchannel.FullError](err)
		switch {
		case isUnknown:
			met, err := p.await(caller, try, unknown)
			absent := fmt.Sprintf("channel %q: consumer %d takes part, and has not entered the channel", p.channel.Name, unknown.ID)
			switch {
			case met:
				continue
			case err == nil:
				return 0, typed.Errorf(mempool.ErrLimit, "%s", absent)
			case errors.Is(caller.Err(), context.DeadlineExceeded) && p.session.Over() == nil:
				return 0, session.Late(caller, typed.Errorf(mempool.ErrLimit, "%s", absent))
			}
			return 0, fmt.Errorf("%s: %w", absent, err)
		case isFull && (try == session.Once || p.over(caller) == nil):
			return 0, p.behind(full)
		case isFull && errors.Is(caller.Err(), context.DeadlineExceeded) && p.session.Over() == nil:
			return 0, session.Late(caller, p.behind(full))
		}
		return 0, p.failure(caller, err)
	}
}

// behind returns the error of a full channel. The error names the reason, and what helps.
func (p *Producer) behind(full *shmchannel.FullError) error {
	why, helps := "another producer has waited for longer", "release frames sooner"
	switch {
	case full.Consumer.ID != 0:
		own := ""
		if int(full.Consumer.PID) == os.Getpid() {
			own = ", this program"
		}
		why = fmt.Sprintf("consumer %d (pid %d%s) has not released frame %d", full.Consumer.ID, full.Consumer.PID, own, full.Floor)
	case full.Waiting > 0 && full.Consumers == 0:
		why, helps = "it has 0 consumers", "start one (Client.Subscribe)"
	case full.Waiting > 0:
		why = fmt.Sprintf("its consumers are behind (it has %s)", count.Of(full.Consumers, "consumer"))
	case p.channel.Mode == mempool.WorkQueue:
		why = "its consumers have not acknowledged the frames that they took"
	}
	or := "make a channel with a larger Capacity or with a Full that drops frames"
	if p.channel.Mode == mempool.Broadcast && (p.channel.Full == mempool.DropOldest || p.channel.Full == mempool.Latest) {
		or = "let that consumer subscribe without Full: Block, as the channel drops frames"
	}
	return typed.Errorf(mempool.ErrLimit, "channel %q is full: it keeps %s, and %s; %s, or %s", p.channel.Name, count.Of(p.channel.Capacity, "frame"), why, helps, or)
}
