package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// wanted releases what a pool's channels have given back, and for a while what they give back. It is a task.
func (c *Client) wanted(pool uint64) {
	sp := c.shared.spares(pool)
	if sp == nil {
		return
	}
	sp.wanted.Store(time.Now().Add(wantedFor).UnixNano())
	sp.empty()
	for _, p := range sp.members() {
		sp.drain(p)
	}
}

// isWanted says whether somebody wants memory of the pool now.
func (sp *spares) isWanted() bool {
	until := sp.wanted.Load()
	if until == 0 {
		return false
	}
	if time.Now().UnixNano() < until {
		return true
	}
	sp.wanted.CompareAndSwap(until, 0)
	return false
}

// published has a producer's blocks looked for: later, or at once while memory is wanted.
func (sp *spares) published(p *producing) {
	sp.look()
	if sp.isWanted() {
		sp.drain(p)
	}
}

// drain begins to release what comes back to a producer, unless that is under way.
func (sp *spares) drain(p *producing) {
	sp.mu.Lock()
	_, under := sp.draining[p]
	sp.draining[p] = struct{}{}
	sp.mu.Unlock()
	if !under && sp.client.inBackground(p.drain) != nil {
		sp.mu.Lock()
		delete(sp.draining, p)
		sp.mu.Unlock()
	}
}

// wantedUntil is a context that ends when memory is not wanted any more, or the client is closed.
func (p *producing) wantedUntil() (context.Context, context.CancelFunc) {
	return context.WithDeadline(p.client.working, time.Unix(0, p.spares.wanted.Load()))
}

// drained says whether a producer need not be looked at any more. failed says that it cannot be.
func (sp *spares) drained(p *producing, failed bool) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if !failed && p.native.Lent() > 0 && sp.isWanted() && sp.client.working.Err() == nil {
		return false
	}
	delete(sp.draining, p)
	return true
}

// drain releases what comes back as long as memory of the pool is wanted.
func (p *producing) drain() {
	p.reclaiming.Lock()
	defer p.reclaiming.Unlock()
	for {
		ctx, stop := p.wantedUntil()
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
