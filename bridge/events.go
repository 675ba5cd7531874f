package bridge

import (
	"context"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Events returns a page of the service's oldest events whose numbers are greater than `after`. It leaves out events that this client may
// not see. If `after` is 0, the page begins with the oldest event that the service has kept. For the next page, pass the page's Next as
// `after`. If there is no new event, Events waits for one. The page is without events only if Lost is not 0.
//
// Errors: [ErrInvalid] if the service has not used the number `after` yet, for example because the service was started again and its
// numbers begin at 1 again; [ErrUnsupported] if the service keeps no history; [ErrDisconnected], [ErrClosed], the context's error.
func (c *Client) Events(ctx context.Context, after uint64) (EventPage, error) {
	for {
		page, err := c.events(ctx, session.Waiting, after)
		if err != nil || len(page.Events) > 0 || page.Lost > 0 {
			return page, err
		}
		after = page.Next // the longest wait of one request has passed, or the deadline of ctx; the next request finds out which
	}
}

// TryEvents is like [Client.Events], but does not wait: if there is no new event, the page is empty.
//
// Errors: those of Events.
func (c *Client) TryEvents(ctx context.Context, after uint64) (EventPage, error) {
	return c.events(ctx, session.Once, after)
}

func (c *Client) events(ctx context.Context, try session.Attempt, after uint64) (mempool.EventPage, error) {
	var reply wire.EventsReply
	r := &wire.Events{After: after}
	if err := c.session.Wait(ctx, try, r, &r.Wait, session.Call{Into: &reply}); err != nil {
		return mempool.EventPage{}, err
	}
	return mempool.EventPage{Events: convert.Events(reply.Events), Next: reply.Next, Lost: reply.Lost}, nil
}

// EndSession ends the session of another client. The service tells that client that its session has ended. If that client had leased or
// mapped memory, the service uses this memory again only after the process of that client has ended. EndSession returns when the session
// has ended.
//
// Errors: [ErrDenied] unless this client's user is the user that the service runs as, or root, [ErrNotFound], [ErrInvalid] for this client's own
// session and for sessions of the service's own process, [ErrDisconnected], [ErrClosed], the context's error.
func (c *Client) EndSession(ctx context.Context, session uint64) error {
	return c.session.Call(ctx, &wire.EndSession{Session: session}, &wire.EmptyReply{})
}
