package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// taken is a frame that the user has in hand.
type taken struct {
	by *consuming

	mu      sync.Mutex
	hand    shmchannel.Hand
	decided bool // the frame was acknowledged, passed or requeued
}

// sharedFrame holds a Frame, its lease and its `taken` in one allocation.
type sharedFrame struct {
	Frame
	lease Lease
	taken taken
}

// frame makes the Frame for a frame that the consumer has taken from the channel, and maps the frame's memory. If mapping fails, `frame`
// returns an error and a Frame without a lease.
func (s *consuming) frame(ctx context.Context, came *shmchannel.Frame) (*Frame, error) {
	b := &sharedFrame{Frame: Frame{Seq: came.Number, Time: time.Unix(0, int64(came.Time)), Dropped: came.Missed, channel: &s.channel}}
	b.taken.by, b.taken.hand = s, came.Hand
	b.lease.client, b.lease.taken = s.client, &b.taken
	for key, value := range shmchannel.Meta(came.Meta) {
		if b.Meta == nil {
			b.Meta = make(map[string]string)
		}
		b.Meta[string(key)] = string(value)
	}
	s.users.Add(1)
	err := s.adopt(ctx, &b.lease, came)
	switch {
	case err == nil:
		b.Lease = &b.lease
	case errors.Is(err, errCorruptRecord):
		_ = b.lease.end(false)
		f, err := s.doubt(came.Number, err)
		f.Dropped = came.Missed
		return f, err
	case errors.Is(err, ErrContentFailed):
		return &b.Frame, errors.Join(err, b.lease.end(false))
	default:
		b.unmapped = &b.lease
	}
	return &b.Frame, err
}

// errCorruptRecord means that the record of a frame cannot be true.
var errCorruptRecord = errors.New("its record cannot be true")

// uncounted is the Grant of a lease that does not count yet as a lease on its block.
var uncounted mempool.Grant

// adopt makes l the lease of the frame `came`.
func (s *consuming) adopt(ctx context.Context, l *Lease, came *shmchannel.Frame) error {
	c := s.client
	l.info = &uncounted
	if err := s.ready(ctx, l, came.Ready); err != nil {
		return err
	}
	if len(came.Event) > 0 {
		p, err := c.pool(ctx, s.channel.Pool)
		if err != nil {
			return err
		}
		l.info = &mempool.Grant{Wait: l.info.Wait, Event: bytes.Clone(came.Event)}
		l.ordering().Expect(l.info.Event, p.info.Device.UUID)
	}
	known, err := c.hold(l, s.channel.Pool, came)
	if known || err != nil {
		return err
	}
	if err := c.session.Enter(); err != nil {
		return err
	}
	defer c.session.Leave()
	if err := s.mapBlock(ctx, came.Block); err != nil {
		return err
	}
	_, err = c.hold(l, s.channel.Pool, came)
	return errors.Join(err, c.ended(came.Block)) // mapBlock has counted a lease, and ended undoes this count
}

// ready sets the fence after which the frame's content is complete.
func (s *consuming) ready(ctx context.Context, l *Lease, fence shmchannel.Fence) error {
	if fence.Value == 0 {
		return nil
	}
	if fence.Timeline == 0 {
		return situation.Of(errCorruptRecord, "a producer without a timeline published a frame with a fence")
	}
	t := mempool.Fence{Timeline: fence.Timeline, Word: fence.Word, Value: fence.Value}
	page, err := s.client.session.Timelines.Page(ctx, t.Timeline)
	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrStale): // the service forgets a timeline only after its process has ended
		return situation.Of(ErrProducerDied, "frame %d of channel %q is incomplete: the process that wrote it died before finishing",
			l.taken.hand.Number, s.channel.Name)
	case err != nil:
		return err
	}
	over, failed := page.Over(t)
	switch {
	case errors.Is(failed, ErrProducerDied):
		return situation.Of(ErrProducerDied, "frame %d of channel %q is incomplete: the process that wrote it died before finishing",
			l.taken.hand.Number, s.channel.Name)
	case failed != nil:
		return fmt.Errorf("frame %d of channel %q: %w", l.taken.hand.Number, s.channel.Name, failed)
	}
	if !over {
		l.info = &mempool.Grant{Wait: []mempool.Fence{t}}
		s.client.session.Timelines.Pin(l.info.Wait)
		l.ordering().Begin(l.info.Wait, true)
	}
	return nil
}

// hold makes a lease on a block that the client has mapped. known is false if the client has not mapped the block.
func (c *Client) hold(l *Lease, pool uint64, came *shmchannel.Frame) (known bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.blocks[came.Block]
	switch {
	case c.closing:
		return false, session.ErrClientClosed
	case b == nil || b.mem == nil:
		return false, nil
	case b.pool != pool:
		return false, situation.Of(errCorruptRecord, "block %d is of pool %d, not of pool %d", came.Block, b.pool, pool)
	}
	d, ok := b.frames[came.Description]
	if !ok || d.info.Buffer != came.Buffer || d.info.Bytes != came.Bytes || d.info.Generation != b.use {
		if d, err = b.describe(came); err != nil {
			return false, err
		}
	}
	info := d.info
	if len(l.info.Wait)+len(l.info.Event) > 0 {
		ordered := *info
		ordered.Wait, ordered.Event = l.info.Wait, l.info.Event
		info = &ordered
	}
	b.leases++
	l.mem, l.memory, l.info = b.mem, d.memory, info
	c.leases.add(l)
	return true, nil
}

// describe makes what the leases of frames with this description share, and keeps it. The caller holds c.mu.
func (b *block) describe(came *shmchannel.Frame) (described, error) {
	d := came.Description
	t := mempool.Tensor{DType: mempool.DType(d.DType), Shape: slices.Clone(d.Shape), Strides: slices.Clone(d.Strides), ByteOffset: d.Offset}
	n, err := t.Extent()
	switch {
	case err != nil:
		return described{}, situation.Of(errCorruptRecord, "%s%v in memory of %d bytes: %v", t.DType, t.Shape, came.Bytes, err)
	case n > came.Bytes:
		return described{}, situation.Of(errCorruptRecord, "%s%v of %d bytes in memory of %d", t.DType, t.Shape, n, came.Bytes)
	case d.Base > b.bytes || came.Bytes > b.bytes-d.Base:
		return described{}, situation.Of(errCorruptRecord, "%d bytes at %d in a block of %d", came.Bytes, d.Base, b.bytes)
	}
	if b.view == nil {
		if b.view, err = b.mem.Memory(false); err != nil {
			return described{}, err
		}
	}
	if len(b.frames) >= maxDescribed {
		clear(b.frames)
	}
	if b.frames == nil {
		b.frames = make(map[*shmchannel.Description]described)
	}
	made := described{&mempool.Grant{Buffer: came.Buffer, Generation: b.use, Pool: b.pool, Block: came.Block, BlockBytes: b.bytes,
		Bytes: came.Bytes, Tensor: t}, mempool.PartOf(b.view, d.Base, came.Bytes)}
	b.frames[d] = made
	return made, nil
}

// mapBlock maps the block of a frame. The mapping counts as a lease on the block until the caller calls Client.ended.
func (s *consuming) mapBlock(ctx context.Context, id uint64) error {
	c := s.client
	p, err := c.pool(ctx, s.channel.Pool)
	if err != nil {
		return err
	}
	var reply wire.MapReply
	var came wire.Grant
	err = c.session.Do(ctx, &wire.Map{Channel: s.channel.ID, Block: id}, &session.Call{Into: &reply,
		Files: func(fds *seqpacket.FDs) {
			came = wire.Grant{Pool: p.info.ID, Block: id, BlockBytes: reply.BlockBytes, Generation: reply.Generation, Export: &reply.Export}
			c.arrived(came, fds)
		},
		Undo: func() { _ = c.ended(id) }})
	if errors.Is(err, ErrNotFound) {
		return situation.Of(errCorruptRecord, "block %d, which the pool does not have in use: %v", id, err)
	}
	if err != nil {
		return err
	}
	if _, _, err := c.mapped(p, came); err != nil {
		return errors.Join(err, c.ended(id))
	}
	return nil
}

// decide requeues the frame if `again` is true, and acknowledges the frame otherwise.
func (t *taken) decide(again bool) error {
	s := t.by
	if s.client.session.Working().Err() != nil {
		return context.Cause(s.client.session.Working())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.decided { // the lease was released
		return shmchannel.ErrReleased
	}
	return t.settle(again)
}

// settle requeues a frame of a queue if `again` is true, and acknowledges it otherwise. In a broadcast, settle instead gives up the frame's
// place in the channel, so that the frame does not block producers any more. If the frame is settled already, settle does nothing. The
// caller holds t.mu.
func (t *taken) settle(again bool) error {
	if t.decided {
		return nil
	}
	t.decided = true
	native := t.by.native
	switch {
	case t.by.channel.Mode != mempool.WorkQueue:
		return native.Pass(&t.hand)
	case again:
		return native.Requeue(&t.hand)
	}
	return native.Acknowledge(&t.hand)
}

// requeueFrames requeues the unsettled frames of queues after the session has ended. The client must do this itself: the service requeues
// the frames of a consumer only after the consumer's process has ended, and this process may still run.
func (c *Client) requeueFrames() {
	c.mu.Lock()
	var frames []*taken
	for l := range c.leases.all() {
		if t := l.taken; t != nil && t.by.channel.Mode == mempool.WorkQueue {
			frames = append(frames, t)
		}
	}
	c.mu.Unlock()
	for _, t := range frames {
		t.mu.Lock()
		_ = t.settle(true) // settle fails if the user has just released the frame
		t.mu.Unlock()
	}
}

// release releases the frame. The consumer's work on the frame is done when the fences in `done` are reached. If a frame of a queue is not
// settled yet, release requeues the frame if `incomplete` is true, and acknowledges it otherwise.
func (t *taken) release(incomplete bool, done []mempool.Fence) error {
	s := t.by
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if s.channel.Mode == mempool.WorkQueue {
		err = t.settle(incomplete)
	}
	var fence shmchannel.Fence
	if len(done) > 0 {
		fence = shmchannel.Fence{Timeline: s.timeline, Word: done[0].Word, Value: done[0].Value}
	}
	released := s.native.Release(&t.hand, fence)
	if errors.Is(released, shmchannel.ErrUnfinished) { // the frame's slot still has the fence of another frame
		if released = s.client.finish(done[0]); released == nil {
			released = s.native.Release(&t.hand, shmchannel.Fence{})
		}
	}
	s.leaveNative()
	if errors.Is(released, shmchannel.ErrReleased) {
		released = situation.Of(ErrReleased, "the subscription of channel %q has given the frame up", s.channel.Name)
	}
	return errors.Join(err, released)
}

// finish waits for a fence of the client's own work.
func (c *Client) finish(t mempool.Fence) error {
	page, err := c.session.Timelines.Page(c.session.Linked(), t.Timeline)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.session.Linked(), session.WorkLimit)
	defer cancel()
	return page.Await(ctx, t)
}
