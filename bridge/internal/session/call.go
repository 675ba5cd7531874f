package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Call is a request that waits for its reply.
type Call struct {
	Into    wire.Reply
	OnReply func(*seqpacket.FDs) // runs in the goroutine that receives the reply, before the caller gets it, and takes its files
	Undo    func()               // releases what the service granted to a caller that no longer waits; runs as a task
	Closing bool                 // the call is allowed while the session is being closed

	op        string
	done      chan error
	grace     time.Duration // how long after the deadline of its context the call still waits for the reply
	abandoned bool          // no caller waits for done; guarded by calls.mu
}

// Call sends a request, waits for the reply and decodes it into `into`. If Call fails, the caller must not read `into`: the receiving
// goroutine may still write it.
func (s *Session) Call(ctx context.Context, r wire.Request, into wire.Reply) error {
	return s.Do(ctx, r, &Call{Into: into})
}

// Do is like [Session.Call], for a reply with files, or one that must be undone if nobody waits for it any more. If ctx ends before the
// reply comes, Do cancels the request; if ctx ends at its deadline, Do first waits up to c.grace longer. If the service has granted
// something to the request nevertheless, the session calls c.Undo.
func (s *Session) Do(ctx context.Context, r wire.Request, c *Call) error {
	return s.explain(s.do(ctx, r, c))
}

// refusal is the service's answer to a request that it refused. It never leaves this package.
type refusal struct {
	op  string
	why *wire.Error
}

func (r *refusal) Error() string { return r.op + ": " + r.why.Error() }

// explain returns the error for the caller of a call that failed with err.
func (s *Session) explain(err error) error {
	if r, refused := errors.AsType[*refusal](err); refused {
		return s.Refused(r.op, r.why)
	}
	return err
}

// do is like Do, but returns a *refusal if the service refused the request.
func (s *Session) do(ctx context.Context, r wire.Request, c *Call) error {
	c.op, c.done = r.Op(), make(chan error, 1)
	if ctx.Err() != nil {
		return ended(ctx, c.op)
	}
	q, err := s.calls.add(c)
	if err != nil {
		return err
	}
	if err := s.send(ctx, q, r); err != nil {
		if s.calls.remove(q) != nil {
			s.Leave()
		}
		return err
	}
	err, answered := s.readFor(ctx, c)
	if !answered {
		err, answered = c.await(ctx)
	}
	if !answered && !s.calls.abandon(q) {
		err, answered = <-c.done, true // the reply came meanwhile
	}
	if !answered {
		err = ended(ctx, c.op)
	}
	if !answered || errors.Is(err, ErrClientClosed) { // err is not an answer of the service
		s.tasks.add(func() { _ = s.Send(&wire.Cancel{Request: uint64(q)}) }) // Send fails only if the connection is gone
	}
	return err
}

// Requests returns how many requests the session has made that have replies.
func (s *Session) Requests() uint32 {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	return s.calls.last
}

// await waits for the reply until ctx ends. If ctx ends at its deadline, await waits at most c.grace longer, because the service answers at
// the same deadline, and its reply takes some time to arrive.
func (c *Call) await(ctx context.Context) (err error, answered bool) {
	select {
	case err := <-c.done:
		return err, true
	case <-ctx.Done():
	}
	if c.grace == 0 || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, false
	}
	select {
	case err := <-c.done:
		return err, true
	case <-time.After(c.grace):
		return nil, false
	}
}

// ended returns the error of a call whose context ended before the reply came.
func ended(ctx context.Context, op string) error {
	return fmt.Errorf("poolbridge %s: %w", op, typed.Ended(ctx))
}

// answered tells the caller of a call that the reply, or an error, has come. If no caller waits, answered undoes what the service granted.
func (s *Session) answered(c *Call, fds *seqpacket.FDs, err error) error {
	why, refused := errors.AsType[*wire.Error](err)
	if refused {
		err = &refusal{c.op, why}
	}
	if err == nil && c.OnReply != nil {
		c.OnReply(fds)
	}
	switch {
	case !c.abandoned: // abandoned cannot change any more, because the call was removed
		c.done <- err
	case err == nil && c.Undo != nil:
		s.tasks.add(c.Undo)
	}
	if refused {
		return nil
	}
	return err
}

var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// Send sends a request that has no reply. A task may call it, but not the goroutine that receives the service's packets: Send may wait until
// the service reads, and the service may be waiting until this goroutine reads.
func (s *Session) Send(r wire.Request) error { return s.send(context.Background(), 0, r) }

func (s *Session) send(ctx context.Context, q uint32, r wire.Request) error {
	buf := outgoing.Get().(*[]byte)
	defer outgoing.Put(buf)
	packet, err := wire.AppendRequest((*buf)[:0], q, r)
	if err != nil {
		return typed.Errorf(mempool.ErrInvalid, "%v", err)
	}
	*buf = packet
	select {
	case s.sending <- struct{}{}:
	case <-ctx.Done():
		return ended(ctx, r.Op())
	}
	ask := s.unconfirmed.add(q, packet)
	err = s.Conn().TrySend(packet, nil)
	if errors.Is(err, seqpacket.ErrWouldBlock) {
		err = s.sendWhenRoom(ctx, packet)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.unconfirmed.undo()
	}
	<-s.sending
	if ask {
		s.tasks.add(s.ask)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ended(ctx, r.Op())
	case s.unconfirmed.lasts() != nil && s.linked.Err() == nil && (errors.Is(err, seqpacket.ErrPeerClosed) || errors.Is(err, os.ErrClosed)):
		return nil // it is sent again, or the session ends, and with it the call
	case errors.Is(err, seqpacket.ErrPeerClosed), errors.Is(err, os.ErrClosed):
		<-s.done // the receiving goroutine may still read a goodbye that says why
		return s.calls.err
	}
	return fmt.Errorf("%w: %w", ErrDisconnected, err)
}

// sendWhenRoom waits until the socket's buffer has room for a packet, and sends the packet. If ctx ends first, sendWhenRoom sends nothing, and
// returns [os.ErrDeadlineExceeded].
func (s *Session) sendWhenRoom(ctx context.Context, packet []byte) error {
	passed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(passed)
		_ = s.Conn().SetWriteDeadline(time.Unix(1, 0)) // a time in the past; this fails only if the connection is closed
	})
	err := s.Conn().Send(packet, nil)
	if !stop() {
		<-passed
		_ = s.Conn().SetWriteDeadline(time.Time{}) // for the next packet
	}
	return err
}

// Enter refuses work while the session is being closed. A method that makes a lease calls Enter first and [Session.Leave] last:
// AwaitCancelled waits until it has called Leave.
func (s *Session) Enter() error { return s.calls.do(func() { s.calls.busy++ }) }

// Leave ends what Enter began.
func (s *Session) Leave() { s.calls.leave() }

// Go runs f in a goroutine, unless the session is being closed. HangUp waits for the goroutine.
func (s *Session) Go(f func()) error { return s.calls.do(func() { s.background.Go(f) }) }

// Background is like Go, but also runs f if the session is being closed. The caller makes sure that HangUp has not been called.
func (s *Session) Background(f func()) { s.background.Go(f) }
