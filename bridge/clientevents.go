package bridge

import (
	"context"
	"math"
	"time"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Events returns the oldest events of the service with numbers greater than after, a page of them, as far as they concern what this client may
// see. 0 asks for all that the service has kept. The page's Next is what to ask for next. If there is nothing new, Events waits for an event.
//
// Errors: [ErrInvalid] for a number that no event has yet: the service was started again, and numbers them anew; [ErrUnsupported] by a service that
// keeps no history; [ErrDisconnected], [ErrClosed], the context's.
func (c *Client) Events(ctx context.Context, after uint64) (EventPage, error) {
	for {
		page, err := c.events(ctx, waiting, after)
		if err != nil || len(page.Events) > 0 || page.Lost > 0 {
			return page, err
		}
		after = page.Next // the longest wait of a request has passed, or the deadline of ctx: the next call says so
	}
}

// TryEvents is like [Client.Events], but does not wait: if there is nothing new, the page has no events.
//
// Errors: those of Events.
func (c *Client) TryEvents(ctx context.Context, after uint64) (EventPage, error) {
	return c.events(ctx, once, after)
}

func (c *Client) events(ctx context.Context, try attempt, after uint64) (mempool.EventPage, error) {
	var reply wire.EventsReply
	r := &wire.Events{After: after}
	if err := c.wait(ctx, try, r, &r.Wait, call{into: &reply}); err != nil {
		return mempool.EventPage{}, err
	}
	page := mempool.EventPage{Next: reply.Next, Lost: reply.Lost}
	for _, e := range reply.Events {
		page.Events = append(page.Events, mempool.HistoryEvent{Number: e.Number, At: timeOf(e.At), Kind: mempool.EventKind(e.Kind), Session: e.Session,
			PID: int32(min(e.PID, math.MaxInt32)), UID: uint32(min(e.UID, math.MaxUint32)), Program: e.Program, Pool: e.Pool, Channel: e.Channel, Buffer: e.Buffer,
			Bytes: e.Bytes, Ending: mempool.SessionEnding(e.Ending), Took: time.Duration(min(e.Took, math.MaxInt64)), Count: max(intOf(e.Count), 1), Text: e.Text})
	}
	return page, nil
}

// EndSession ends the session of another client, which is told so. What it had leased or mapped is used again once its process is gone. It returns when
// the session has ended.
//
// Errors: [ErrDenied] to all but the user that the service runs as, [ErrNotFound], [ErrInvalid] for this client's own session and for those of the
// service's own process, [ErrDisconnected], [ErrClosed], the context's.
func (c *Client) EndSession(ctx context.Context, session uint64) error {
	return c.call(ctx, &wire.EndSession{Session: session}, &call{into: &wire.EmptyReply{}})
}

// bye says that the client closes the connection, unless that would wait.
func (c *Client) bye() {
	packet, err := wire.AppendRequest(nil, 0, &wire.Bye{})
	if err != nil || !c.sending.TryLock() {
		return
	}
	defer c.sending.Unlock()
	_ = c.conn.TrySend(packet, nil) // the connection may be gone
}
