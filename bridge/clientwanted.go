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

// isWanted says whether memory of the pool is wanted at the service now, by another session or by an allocation of this client.
func (sp *spares) isWanted() bool {
	if sp.asking.Load() > 0 {
		return true
	}
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

// errNotWanted ends the wait for memory that was wanted.
var errNotWanted = errors.New("the memory is not wanted any more")

// wantedTime is a context that ends with the client, or when memory is not wanted any more.
type wantedTime struct {
	context.Context
	spares *spares
}

func (w wantedTime) Err() error {
	if err := w.Context.Err(); err != nil {
		return err
	}
	if !w.spares.isWanted() {
		return errNotWanted
	}
	return nil
}

func (w wantedTime) Deadline() (time.Time, bool) {
	if until := w.spares.wanted.Load(); until != 0 && w.spares.asking.Load() == 0 {
		return time.Unix(0, until), true
	}
	return w.Context.Deadline()
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
	ctx := wantedTime{p.client.working, p.spares}
	for {
		back, err := p.native.AwaitReclaim(ctx)
		if unknown, ok := errors.AsType[*shmchannel.UnknownMemberError](err); ok {
			limited, stop := context.WithTimeout(p.client.working, wantedFor)
			err = p.await(limited, unknown)
			stop()
		} else if err == nil {
			p.cameBack(back)
		}
		failed := err != nil && ctx.Err() == nil
		if len(back) == 0 && p.spares.drained(p, failed) { // the channel has none, or the time is over
			return
		}
	}
}
