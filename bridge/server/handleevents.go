package server

import (
	"cmp"
	"context"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// events answers with a page of events: at once if there are events, otherwise when the next event comes.
func (c *connection) events(q uint32, r *wire.Events) {
	most := int(min(cmp.Or(r.Most, wire.MaxEvents), wire.MaxEvents))
	answer := func(page mempool.EventPage, err error) {
		c.answer(q, &wire.EventsReply{Events: convert.WireEvents(page.Events), Next: page.Next, Lost: page.Lost}, err)
	}
	page, err := c.session.View().Events(c.ctx, r.After, most, 0)
	if q == 0 || err != nil || r.Wait == 0 || len(page.Events) > 0 || page.Lost > 0 {
		answer(page, err)
		return
	}
	c.waitFor(q, typed.Errorf(mempool.ErrBusy, "nothing has happened since event %d", r.After), func(ctx context.Context) func() {
		page, err := c.session.View().Events(ctx, page.Next, most, milliseconds(r.Wait))
		return func() { answer(page, err) }
	})
}

// bye records that the client is closed. The client closes the connection when it has released its leases and dropped its blocks.
func (c *connection) bye(q uint32, _ *wire.Bye) {
	c.leaves = true
	c.session.Leave()
	c.done(q, nil)
}

// errEnded is the reason of the goodbye to a client whose session an operator ends.
var errEnded = typed.Errorf(mempool.ErrClosed, "an operator ended this session (poolsvc session end)")

// endSession ends the session of another client. The service uses the memory of that session again only after the process of that client
// has ended.
func (c *connection) endSession(q uint32, r *wire.EndSession) {
	over, err := c.session.MayEnd(r.Session)
	conn := c.server.connOf(r.Session)
	switch {
	case err != nil:
		c.fail(q, err)
		return
	case conn == nil:
		c.fail(q, typed.Errorf(mempool.ErrInvalid, "session %d is the service's own, and ends with it", r.Session))
		return
	}
	conn.cancel(errEnded)
	if q == 0 {
		return
	}
	c.waitFor(q, typed.Errorf(mempool.ErrBusy, "session %d is about to end", r.Session), func(ctx context.Context) func() {
		select {
		case <-over:
		case <-ctx.Done():
			return func() { c.fail(q, context.Cause(ctx)) }
		}
		return func() { c.done(q, nil) }
	})
}
