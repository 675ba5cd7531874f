package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// producing is a producer of a channel. A client makes one value of type producing for each channel, at its first Publish in this channel.
type producing struct {
	membership
	joined chan struct{} // closed when native or err is set
	err    error
	native *shmchannel.Producer
	spares *spares

	reclaiming chan struct{} // has an element while a goroutine calls native.Reclaim and handles the result
}

// producer returns the client's producer of the channel. It joins the channel if necessary.
func (ch *Channel) producer(ctx context.Context) (*producing, error) {
	if p := ch.joined.Load(); p != nil && !p.forgotten.Load() {
		return p, nil
	}
	c, s := ch.client, &ch.client.shared
	s.mu.Lock()
	p := s.producers[ch.info.ID]
	if p == nil {
		p = &producing{membership: newMembership(ch, shmchannel.ProducerRole), joined: make(chan struct{}), reclaiming: make(chan struct{}, 1)}
		p.depart = func(context.Context) { p.unseat() }
		if err := c.inBackground(p.begin); err != nil { // in the background, so that joining continues if ctx ends
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
	default:
		select {
		case <-p.joined:
		case <-ctx.Done():
			return nil, situation.Ended(ctx)
		}
	}
	if p.err == nil {
		ch.joined.Store(p)
	}
	return p, p.err
}

// begin joins the channel. If joining fails, the next Publish tries again.
func (p *producing) begin() {
	s := &p.client.shared
	p.err = p.join(p.client.working, &wire.Join{}, func(config shmchannel.MemberConfig) (err error) {
		p.native, err = shmchannel.OpenProducer(config)
		if err == nil {
			p.add, p.counts = p.native.AddCursor, p.native.Counts
			p.unwatch = context.AfterFunc(p.client.working, p.native.Wake)
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.err == nil {
		p.depart = p.retire
		p.spares = s.sparesOf(p.client, p.channel.Pool)
		p.spares.know(p)
	} else {
		p.err = errors.Join(p.err, p.close())
		delete(s.producers, p.channel.ID)
	}
	close(p.joined)
}

const (
	// leaveTries is how long a producer keeps asking the service whether the producer may leave.
	leaveTries = 100 * time.Millisecond
	// leavePause is how long a producer waits between two of these requests.
	leavePause = 2 * time.Millisecond
)

// retire leaves the channel. The service then ends the leases of the memory that the channel still needs, and keeps this memory as long as
// the channel needs it. retire releases the remaining leases. The caller makes sure that no call of Publish is running.
func (p *producing) retire(ctx context.Context) {
	c := p.client
	left := p.leave(ctx)
	p.reclaim()
	if !left { // the service finds out what the leases need when the session ends
		return
	}
	for _, a := range c.shared.arenas(p) {
		own := slices.DeleteFunc(a.work(), func(t mempool.Fence) bool { return t.Timeline != p.timeline })
		_ = c.releaseLoan(&sending{info: a.info}, own) // releaseLoan fails only if the connection is gone
	}
	for _, owner := range p.native.Forget() {
		l, ok := owner.(*sending)
		if !ok {
			continue
		}
		own := slices.DeleteFunc(l.wait, func(t mempool.Fence) bool { return t.Timeline != p.timeline })
		_ = c.releaseLoan(l, own) // releaseLoan fails only if the connection is gone
	}
}

// leave asks the service to remove the producer, and to end the leases of the memory that the channel still needs. It reports whether the
// producer is removed.
func (p *producing) leave(ctx context.Context) bool {
	for end := time.Now().Add(leaveTries); ; {
		err := p.client.call(ctx, &wire.Leave{Channel: p.channel.ID, Member: p.id}, &call{into: &wire.EmptyReply{}, last: true})
		_, refused := errors.AsType[*RemoteError](err)
		switch {
		case err == nil || refused && !errors.Is(err, ErrBusy): // if the service refused, the channel is gone
			return true
		case !refused || time.Now().After(end):
			return false
		}
		time.Sleep(leavePause) // ErrBusy means that a consumer is just taking or releasing a frame
	}
}

func (p *producing) close() error {
	if p.native == nil {
		return nil
	}
	p.unwatch()
	return p.native.Close()
}

// lend makes the loan of a lease whose memory the channel will get.
func (l *Lease) lend(ready *mempool.Fence) *sending {
	lent := l.loan
	if lent == nil {
		lent = new(sending)
	}
	lent.info, lent.mem, lent.memory, lent.own, lent.wait = l.info, l.mem, l.memory, l.own, lent.wait[:0]
	if len(l.info.Wait)+len(l.info.Event) > 0 {
		info := *l.info
		info.Wait, info.Event = nil, nil
		lent.info = &info
	}
	if l.reused {
		lent.wait = append(lent.wait, l.info.Wait...)
	}
	if ready != nil {
		lent.add(*ready)
	}
	return lent
}

// reclaim takes and handles the loans that have come back, unless another goroutine is doing this.
func (p *producing) reclaim() {
	select {
	case p.reclaiming <- struct{}{}:
		_, _ = p.takeBack() // if reclaiming failed, the next Publish returns the error
	default:
	}
}

// awaitReclaim is like reclaim. But if another goroutine is handling loans, awaitReclaim first waits until this goroutine is done, or until
// ctx ends. It returns how many loans this call has handled.
func (p *producing) awaitReclaim(ctx context.Context) (n int, err error) {
	select {
	case p.reclaiming <- struct{}{}:
		return p.takeBack()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// takeBack takes and handles the loans that have come back. The caller has put an element into p.reclaiming, which takeBack removes.
func (p *producing) takeBack() (n int, err error) {
	defer func() { <-p.reclaiming }()
	back, err := p.native.Reclaim()
	if err == nil {
		p.cameBack(back)
	}
	return len(back), err
}

// cameBack handles the loans that have come back. If Allocate made the lease of a loan, the loan becomes a spare, which a later Allocate
// can use. Otherwise cameBack releases the lease. The caller has put an element into p.reclaiming.
func (p *producing) cameBack(back []shmchannel.Returned) {
	for i := range back {
		if s, ok := back[i].Owner.(*slot); ok {
			for _, t := range back[i].Fences {
				s.wait = addFence(s.wait, mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
			}
			s.back()
			continue
		}
		l := back[i].Owner.(*sending)
		for _, t := range back[i].Fences {
			l.add(mempool.Fence{Timeline: t.Timeline, Word: t.Word, Value: t.Value})
		}
		if !l.own { // other clients may know the buffer
			_ = p.client.giveUp(l) // giveUp fails only if the connection is gone
			continue
		}
		p.spares.put(l)
	}
}
