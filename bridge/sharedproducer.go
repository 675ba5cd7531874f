package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// producing is a client's part in a shared channel as a producer. A client has one for each channel, from its first Publish on.
type producing struct {
	membership
	joined chan struct{} // closed when native or err is there
	err    error
	native *shmchannel.Producer
	spares *spares

	mu   sync.Mutex
	lent map[uint64]*loan // by block

	reclaiming sync.Mutex // held while what native returns is used
}

// loan is a write lease that the user has no more: the channel has its memory, or has given it back.
type loan struct {
	info mempool.LeaseInfo
	mem  *mempool.ImportedBlock
	wait []mempool.Ticket // what must be reached before the memory is written
}

// add adds what must be waited for. Of each word of a timeline the greatest value is enough.
func (l *loan) add(t mempool.Ticket) {
	for i := range l.wait {
		if have := &l.wait[i]; have.Timeline == t.Timeline && have.Word == t.Word {
			have.Value = max(have.Value, t.Value)
			return
		}
	}
	l.wait = append(l.wait, t)
}

// producer is the client's part in the channel. It joins if need be.
func (ch *Channel) producer(ctx context.Context) (*producing, error) {
	c, s := ch.client, &ch.client.shared
	s.mu.Lock()
	p := s.producers[ch.info.ID]
	if p == nil {
		p = &producing{membership: newMembership(ch, shmchannel.ProducerRole), joined: make(chan struct{}), lent: make(map[uint64]*loan)}
		p.depart = p.retire
		if err := c.inBackground(p.begin); err != nil { // joining goes on if ctx ends
			s.mu.Unlock()
			return nil, err
		}
		if s.producers == nil {
			s.producers = make(map[uint64]*producing)
		}
		s.producers[ch.info.ID] = p
	}
	s.mu.Unlock()
	select {
	case <-p.joined:
		return p, p.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// begin joins the channel. If that fails the next Publish tries again.
func (p *producing) begin() {
	s := &p.client.shared
	p.err = p.join(p.client.working, &wire.Join{}, func(config shmchannel.MemberConfig) (err error) {
		p.native, err = shmchannel.OpenProducer(config)
		if err == nil {
			p.add = p.native.AddCursor
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.err == nil {
		p.spares = s.sparesOf(p.client, p.channel.Pool)
		p.spares.producers = append(p.spares.producers, p)
		p.spares.most += p.channel.Capacity
	} else {
		p.err = errors.Join(p.err, p.close())
		delete(s.producers, p.channel.ID)
	}
	close(p.joined)
}

// retire leaves the channel. The leases end that the channel needs, and the others are released. No Publish is under way.
func (p *producing) retire() {
	c := p.client
	_ = c.send(0, &wire.Leave{Channel: p.channel.ID, Member: p.id}) // it fails with the connection
	p.reclaim()
	p.mu.Lock()
	lent := p.lent
	p.lent = make(map[uint64]*loan)
	p.mu.Unlock()
	for block := range lent {
		_ = c.ended(block) // what it sends fails with the connection
	}
}

func (p *producing) close() error {
	if p.native == nil {
		return nil
	}
	return p.native.Close()
}

// frameRecord is what the channel is told of a frame. It is used again.
type frameRecord struct {
	shmchannel.Record
	description shmchannel.Description
}

var records = sync.Pool{New: func() any { return new(frameRecord) }}

// publishShared is Publish in a shared channel. l.mu is held.
func (ch *Channel) publishShared(ctx context.Context, l *Lease, o mempool.FrameOptions) (uint64, error) {
	t, err := ch.fits(l, o.Tensor)
	if err != nil {
		return 0, err
	}
	p, err := ch.producer(ctx)
	if err != nil {
		return 0, err
	}
	ready, err := l.completed(ctx, o.Completion)
	if err != nil {
		return 0, err
	}
	r := records.Get().(*frameRecord)
	defer records.Put(r)
	if err := r.fill(l, t, o, ready, p.timeline); err != nil {
		return 0, err
	}
	p.lend(l, ready)
	number, err := p.publish(ctx, &r.Record, o.Wait)
	if err != nil {
		p.takeBack(l.info.Block)
		if ctx.Err() == nil {
			return 0, err
		}
		defer l.leave()
		return 0, errors.Join(err, l.end(true))
	}
	l.ended = true
	l.leave()
	if l.reused {
		ch.client.timelines.unpin(l.info.Wait)
	}
	return number, l.order.Close()
}

// fits says whether the lease's buffer can go into the channel, and what it holds.
func (ch *Channel) fits(l *Lease, t *mempool.Tensor) (*mempool.Tensor, error) {
	switch {
	case !l.info.Write:
		return nil, situation(ErrInvalid, "lease %d is to read; a frame is sent with a write lease", l.info.ID)
	case l.info.Pool != ch.info.Pool:
		return nil, situation(ErrInvalid, "lease %d is of pool %d; channel %q carries buffers of pool %d", l.info.ID, l.info.Pool, ch.info.Name,
			ch.info.Pool)
	case t == nil:
		return &l.info.Tensor, nil
	}
	n, err := t.Extent()
	if err == nil && n > l.info.Bytes {
		err = situation(ErrInvalid, "%s%v needs %d bytes, the buffer of lease %d has %d", t.DType, t.Shape, n, l.info.ID, l.info.Bytes)
	}
	return t, err
}

// fill writes the record of a frame. own is the client's timeline.
func (r *frameRecord) fill(l *Lease, t *mempool.Tensor, o mempool.FrameOptions, ready *mempool.Ticket, own uint64) (err error) {
	r.Block, r.Buffer, r.Bytes, r.Event = l.info.Block, l.info.Buffer, l.info.Bytes, o.Handle(ready)
	r.Ready = shmchannel.Ticket{}
	if ready != nil {
		if ready.Timeline != own {
			return situation(ErrInvalid, "a ticket of timeline %d cannot say when content of this session is complete: its own is %d", ready.Timeline, own)
		}
		if err := ready.Validate(); err != nil {
			return err
		}
		r.Ready = shmchannel.Ticket{Timeline: own, Word: ready.Word, Value: ready.Value}
	}
	if r.Meta, err = shmchannel.AppendMeta(r.Meta[:0], o.Meta); err != nil {
		return situation(ErrInvalid, "%v", err)
	}
	r.description = shmchannel.Description{Offset: t.ByteOffset, DType: string(t.DType), Shape: t.Shape, Strides: t.Strides}
	r.Description = &r.description
	return nil
}

// lend notes a lease whose memory the channel is about to have: it may come back before Publish returns.
func (p *producing) lend(l *Lease, ready *mempool.Ticket) {
	lent := &loan{info: l.info, mem: l.mem}
	lent.info.Wait, lent.info.Event = nil, nil
	if l.reused {
		lent.wait = slices.Clone(l.info.Wait)
	}
	if ready != nil {
		lent.add(*ready)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent[l.info.Block] = lent
}

// takeBack is the loan of a block that the channel has no more; nil if there is none.
func (p *producing) takeBack(block uint64) *loan {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lent[block]
	delete(p.lent, block)
	return l
}

// publish publishes a record. It waits for room as FrameOptions says.
func (p *producing) publish(ctx context.Context, r *shmchannel.Record, wait time.Duration) (uint64, error) {
	p.reclaim()
	number, err := p.native.TryPublish(r)
	if err != nil {
		number, err = p.publishInTime(ctx, r, wait)
	}
	if err == nil {
		p.spares.published(p)
	}
	return number, err
}

// errNoRoom ends the wait for room.
var errNoRoom = errors.New("no room in time")

// publishInTime is publish that may have to wait.
func (p *producing) publishInTime(caller context.Context, r *shmchannel.Record, wait time.Duration) (uint64, error) {
	ctx, cancel := p.client.joint(caller)
	defer cancel()
	limited := ctx
	switch {
	case wait > 0:
		var stop context.CancelFunc
		limited, stop = context.WithTimeoutCause(ctx, wait, errNoRoom)
		defer stop()
	case wait < 0:
		var stop context.CancelCauseFunc
		limited, stop = context.WithCancelCause(ctx)
		stop(errNoRoom)
	}
	for {
		number, err := p.native.Publish(limited, r)
		if err == nil {
			return number, nil
		}
		unknown, isUnknown := errors.AsType[*shmchannel.UnknownMemberError](err)
		full, isFull := errors.AsType[*shmchannel.FullError](err)
		switch {
		case isUnknown:
			if err := p.await(ctx, unknown); err != nil {
				return 0, err
			}
			continue
		case isFull && errors.Is(err, errNoRoom):
			return 0, p.behind(ErrTimeout, full)
		case isFull && ctx.Err() == nil:
			return 0, p.behind(ErrLimit, full)
		}
		return 0, p.failure(caller, err)
	}
}

// behind says why there is no room.
func (p *producing) behind(sentinel error, full *shmchannel.FullError) error {
	why := "another producer has waited for longer"
	switch {
	case full.Consumer.ID != 0:
		why = fmt.Sprintf("consumer %d (pid %d) has not released frame %d", full.Consumer.ID, full.Consumer.PID, full.Floor)
	case full.Waiting > 0:
		why = fmt.Sprintf("%d frames wait for a consumer", full.Waiting)
	case p.channel.Mode == mempool.WorkQueue:
		why = "its consumers have not acknowledged what they took"
	}
	return situation(sentinel, "channel %q has no room for frame %d: %s", p.channel.Name, full.Number, why)
}

// reclaim takes what has come back, unless another goroutine does.
func (p *producing) reclaim() {
	if !p.reclaiming.TryLock() {
		return
	}
	defer p.reclaiming.Unlock()
	back, err := p.native.Reclaim()
	if err == nil { // else Publish tells what is wrong
		p.cameBack(back)
	}
}

// cameBack makes spares of what has come back. p.reclaiming is held.
func (p *producing) cameBack(back []shmchannel.Returned) {
	for i := range back {
		l := p.takeBack(back[i].Block)
		if l == nil {
			continue
		}
		for _, t := range back[i].Tickets {
			l.add(mempool.Ticket{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
		}
		p.spares.put(l)
	}
}

// drain releases what comes back as long as memory of the pool is wanted.
func (p *producing) drain() {
	p.reclaiming.Lock()
	defer p.reclaiming.Unlock()
	for {
		ctx, stop := p.spares.wantedUntil()
		back, err := p.native.AwaitReclaim(ctx)
		if unknown, ok := errors.AsType[*shmchannel.UnknownMemberError](err); ok {
			err = p.await(ctx, unknown)
		} else if err == nil {
			p.cameBack(back)
		}
		failed := err != nil && ctx.Err() == nil
		stop()
		if len(back) == 0 && p.spares.drained(p, failed) { // the channel has none, or the time is over
			return
		}
	}
}
