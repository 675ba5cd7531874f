package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

// wanted handles a notice that another session wants memory of a pool. It releases the memory that the pool's channels have given back to
// this client. For the time wantedFor, the client also releases all memory that these channels give back later. The client runs wanted as
// one of its `tasks`.
func (c *Client) wanted(pool uint64) {
	for _, p := range c.shared.publishersIn(pool) {
		p.from.reclaim()
		p.giveBack()
	}
	sp := c.shared.spares(pool)
	if sp == nil {
		return
	}
	sp.wanted.Store(time.Now().Add(wantedFor).UnixNano())
	sp.empty()
	sp.drainAll()
}

// isWanted reports whether another session or an allocation of this client wants memory of the pool now.
func (sp *spares) isWanted() bool { return sp.asking.Load() > 0 || sp.isWantedByOthers() }

// isWantedByOthers reports whether another session wants memory of the pool now.
func (sp *spares) isWantedByOthers() bool {
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

// published makes sure that the blocks of a producer are reclaimed: later by sweep, or as soon as possible by drain while memory is wanted.
func (sp *spares) published(p *producing) {
	sp.look()
	if sp.isWanted() {
		sp.drain(p)
	}
}

// drainAll calls drain for each producer whose channel has memory.
func (sp *spares) drainAll() {
	for _, p := range sp.members() {
		if p.native.Lent() > 0 {
			sp.drain(p)
		}
	}
}

// drain starts to release the memory that comes back to a producer, unless drain already runs for the producer.
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

// errNotWanted is the error of a wait for memory that is no longer wanted.
var errNotWanted = errors.New("the memory is not wanted any more")

// wantedTime is a context that ends when the client ends, or when memory is not wanted any more.
type wantedTime struct {
	context.Context
	spares *spares
}

func (w wantedTime) Err() error {
	if err := w.Context.Err(); err != nil {
		return err
	}
	if !w.spares.isWanted() && w.spares.awaited.Load() == 0 {
		return errNotWanted
	}
	return nil
}

func (w wantedTime) Deadline() (time.Time, bool) {
	if until := w.spares.wanted.Load(); until != 0 && w.spares.asking.Load() == 0 && w.spares.awaited.Load() == 0 {
		return time.Unix(0, until), true
	}
	return w.Context.Deadline()
}

// drained reports whether drain can end for a producer. `failed` means that the producer's memory cannot be reclaimed.
func (sp *spares) drained(p *producing, failed bool) bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if !failed && p.native.Lent() > 0 && (sp.isWanted() || sp.awaited.Load() > 0) && sp.client.working.Err() == nil {
		return false
	}
	delete(sp.draining, p)
	return true
}

// drain takes or releases memory that comes back while memory of the pool is wanted, or while an allocation waits for the service's answer.
func (p *producing) drain() {
	ctx := wantedTime{p.client.working, p.spares}
	for {
		var back int
		var err error
		ended := p.native.AwaitBack(ctx, func() bool {
			back, err = p.awaitReclaim(ctx)
			return back > 0 || err != nil || p.native.Lent() == 0
		})
		if unknown, ok := errors.AsType[*shmchannel.UnknownMemberError](err); ok {
			limited, stop := context.WithTimeout(p.client.working, wantedFor)
			err = p.await(limited, unknown)
			stop()
		}
		failed := err != nil || ended != nil && !errors.Is(ended, errNotWanted)
		if back == 0 && p.spares.drained(p, failed) { // the channel has no memory of the client, or the memory is not wanted any more
			return
		}
	}
}
