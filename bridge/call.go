package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// call is a request that waits for its reply.
type call struct {
	op    string
	into  wire.Reply
	files func(*seqpacket.FDs) // takes the files of the reply; called before done
	undo  func()               // releases what the service granted to a caller that no longer waits; runs as a task
	done  chan error
	last  bool          // Close itself makes this call, so the call is allowed while the client is closing
	grace time.Duration // how long after the deadline of its context the call still waits for the reply

	abandoned bool // no caller waits for done; guarded by Client.mu
}

// call sends a request, waits for the reply and decodes the reply into pending.into. If ctx ends before the reply comes, call cancels the
// request. If the service has granted something to the request nevertheless, the client gives it back to the service.
func (c *Client) call(ctx context.Context, r wire.Request, pending *call) error {
	pending.op, pending.done = r.Op(), make(chan error, 1)
	if ctx.Err() != nil {
		return pending.ended(ctx)
	}
	q, err := c.register(pending)
	if err != nil {
		return err
	}
	if err := c.send(q, r); err != nil {
		if c.forget(q) != nil {
			c.leave()
		}
		return err
	}
	err, answered := pending.await(ctx)
	if !answered && !c.abandon(q) {
		err, answered = <-pending.done, true // the reply came meanwhile
	}
	if !answered {
		err = pending.ended(ctx)
	}
	if !answered || errors.Is(err, errClientClosed) { // err is not an answer of the service
		c.cancel(q)
	}
	return err
}

// await waits for the reply until ctx ends. If ctx ends at its deadline, await waits at most p.grace longer, because the service answers at
// the same deadline, and its reply takes some time to arrive.
func (p *call) await(ctx context.Context) (err error, answered bool) {
	select {
	case err := <-p.done:
		return err, true
	case <-ctx.Done():
	}
	if p.grace == 0 || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, false
	}
	select {
	case err := <-p.done:
		return err, true
	case <-time.After(p.grace):
		return nil, false
	}
}

// ended returns the error of a call whose context ended before the reply came.
func (p *call) ended(ctx context.Context) error {
	return fmt.Errorf("poolbridge %s: %w", p.op, situation.Ended(ctx))
}

// cancel asks the service to end a request.
func (c *Client) cancel(q uint32) {
	c.tasks.add(func() { _ = c.send(0, &wire.Cancel{Request: uint64(q)}) })
}

func (c *Client) register(pending *call) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.calls == nil:
		return 0, c.err
	case c.closing && !pending.last:
		return 0, errClientClosed
	}
	for {
		c.lastQ++
		if _, taken := c.calls[c.lastQ]; c.lastQ != 0 && !taken {
			c.calls[c.lastQ] = pending
			c.busy++
			return c.lastQ, nil
		}
	}
}

// forget removes a call from the list of calls and returns the call. It returns nil if the list has no such call. The removed call still
// counts as busy until the caller of forget calls Client.leave.
func (c *Client) forget(q uint32) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := c.calls[q]
	delete(c.calls, q)
	return pending
}

// abandon marks a call as abandoned by its caller. It returns false if the reply has come.
func (c *Client) abandon(q uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := c.calls[q]
	if pending == nil || pending.abandoned {
		return false
	}
	pending.abandoned = true
	return true
}

// abandonAll makes all waiting calls fail with err. The goroutine that made a call then cancels the request of this call.
func (c *Client) abandonAll(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pending := range c.calls {
		if !pending.abandoned {
			pending.abandoned = true
			pending.done <- err
		}
	}
}

// answered tells the caller of a call that the reply, or an error, has come. If no caller waits, answered undoes what the service granted.
func (c *Client) answered(pending *call, fds *seqpacket.FDs, err error) error {
	failure, failed := errors.AsType[*wire.Error](err)
	if failed {
		err = remoteError(pending.op, failure)
	}
	if err == nil && pending.files != nil {
		pending.files(fds)
	}
	switch {
	case !pending.abandoned: // abandoned cannot change any more, because the call was forgotten
		pending.done <- err
	case err == nil && pending.undo != nil:
		c.tasks.add(pending.undo)
	}
	if failed {
		return nil
	}
	return err
}

var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// send sends a request. The goroutine that receives the service's packets must not call send: send may wait until the service reads, and
// the service may be waiting until this goroutine reads.
func (c *Client) send(q uint32, r wire.Request) error {
	buf := outgoing.Get().(*[]byte)
	defer outgoing.Put(buf)
	packet, err := wire.AppendRequest((*buf)[:0], q, r)
	if err != nil {
		return situation.Of(ErrInvalid, "%v", err)
	}
	*buf = packet
	c.sending.Lock()
	err = c.conn.Send(packet, nil)
	c.sending.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, seqpacket.ErrPeerClosed), errors.Is(err, os.ErrClosed):
		<-c.done // the receiving goroutine may still read a goodbye that says why
		return c.err
	}
	return fmt.Errorf("%w: %w", ErrDisconnected, err)
}
