package bridge

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// This file is how the server talks to a client. What is sent at a time is one packet; a client that does not take it
// within the limit is cut off, so that nobody waits for it longer.

// notify takes what the service has to say to this session. It must not block: the service's locks are held.
func (c *serverConn) notify(n service.Notice) {
	if limit := c.server.limits.notices; !c.notices.add(n, limit) {
		// The client reads nothing: only its end frees what it was asked for.
		c.cancel(situation.Of(ErrLimit, "%d notices wait for a client that reads none", limit))
	}
}

func (c *serverConn) sendNotices() {
	defer c.work.Done()
	for {
		select {
		case <-c.notices.wake:
		case <-c.ctx.Done():
			return
		}
		for n := c.notices.next(); n != nil && c.ctx.Err() == nil; n = c.notices.next() {
			c.sendNotice(n)
		}
	}
}

func (c *serverConn) sendNotice(n service.Notice) {
	switch n := n.(type) {
	case service.Recall:
		for part := range slices.Chunk(n.Blocks, wire.MaxElements) {
			c.tell(&wire.Recall{Blocks: part})
		}
	case service.Failed:
		for part := range slices.Chunk(n.Buffers, wire.MaxElements) {
			c.tell(&wire.Failed{Buffers: part})
		}
	case service.Forget:
		c.tell(&wire.Forget{Timelines: n.Timelines})
	case service.MemberCame:
		c.sendMember(n)
	case service.Wanted:
		c.tell(&wire.Wanted{Pool: n.Pool})
	}
}

// tell sends a notice. One that cannot be sent is nobody's fault but the connection's, which ends with it.
func (c *serverConn) tell(n wire.Notice) {
	_ = c.send(nil, func(dst []byte) ([]byte, error) { return wire.AppendNotice(dst, n) })
}

// mentionRoom is how many bytes a client may have left unread and still be sent a notice that it need not get: some notices, and
// much less than a socket has room for.
const mentionRoom = 16 << 10

// mention sends a notice that the client need not get. It is dropped where the client does not read what it was sent, or where
// another packet is being sent: it waits for nothing, and leaves the socket's room to what must arrive.
func (c *serverConn) mention(n wire.Notice) {
	if !c.sending.TryLock() {
		return
	}
	defer c.sending.Unlock()
	unread, err := c.conn.Unread()
	if err != nil || unread > mentionRoom {
		return
	}
	packet, err := wire.AppendNotice(c.out[:0], n)
	if err != nil {
		return
	}
	c.out = packet
	err = c.conn.TrySend(packet, nil)
	if err != nil && !errors.Is(err, seqpacket.ErrWouldBlock) && !errors.Is(err, seqpacket.ErrPeerClosed) {
		c.cancel(sendingFailed(err))
	}
}

// sendingFailed says why a session ends to which nothing can be sent.
func sendingFailed(err error) error {
	switch {
	case errors.Is(err, ErrProtocol):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, seqpacket.ErrFDsInFlight):
		return situation.Of(ErrLimit, "the client does not take what it is sent: %v", err)
	}
	return fmt.Errorf("sending failed: %w", err)
}

// goodbye says why the connection is about to be closed, if the client takes it at once.
func (c *serverConn) goodbye(reason error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.conn.SetWriteDeadline(time.Time{}) // the session's end set one
	farewell(c.conn, reason)
}

func farewell(conn *seqpacket.Conn, reason error) {
	if packet, err := wire.AppendNotice(nil, &wire.Goodbye{Reason: *wireError(reason)}); err == nil {
		_ = conn.TrySend(packet, nil) // it need not arrive
	}
}

// reply answers request q, if it wanted an answer; files go along.
func (c *serverConn) reply(q uint32, r wire.Reply, files []*os.File) {
	if q == 0 {
		return
	}
	sent := c.answer(q)
	c.answered(q, sent, c.send(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, r) }))
}

// answered is called when the answer to request q was sent, or could not be.
func (c *serverConn) answered(q uint32, sent func(result string), err error) {
	if err != nil {
		c.failed(q, sent, err)
		return
	}
	sent("ok")
}

// replyLease answers with a lease. The first one on a block carries the export, and no other may pass it on the way: the block counts as
// mapped only from when this has c.sending, for which another goroutine that finds it mapped waits.
func (c *serverConn) replyLease(q uint32, g service.Grant, err error) {
	if err != nil {
		c.fail(q, err)
		return
	}
	out := wireLease(g.Info)
	var files []*os.File
	first := false
	sent := c.answer(q)
	c.sending.Lock()
	if !g.Mapped || c.unsent {
		var x mempool.Export
		if x, first, err = g.Lease.Export(); first {
			out.Export, files = wireExport(x)
		}
	}
	if err == nil {
		err = c.transmit(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, &wire.LeaseReply{Lease: out}) })
	}
	if err != nil {
		c.unsent = c.unsent || first
		err = errors.Join(err, g.Lease.Undo(first))
	}
	c.sending.Unlock()
	c.answered(q, sent, err)
}

// fail answers request q with an error; to a client that wants no answers it says nothing, unless the session ends.
func (c *serverConn) fail(q uint32, err error) { c.failed(q, c.answer(q), err) }

func (c *serverConn) failed(q uint32, sent func(result string), err error) {
	e := wireError(err)
	if e.Code == wire.CodeInternal {
		c.server.config.Log.Error("a request failed", "error", err)
	}
	if e.Code == wire.CodeLimit && c.session != nil {
		c.session.Refused(err)
	}
	defer sent(string(e.Code))
	if q != 0 {
		_ = c.send(nil, func(dst []byte) ([]byte, error) { return wire.AppendError(dst, q, e) })
	} else if e.Code == wire.CodeProtocol || c.session == nil {
		c.goodbye(err)
	}
}

func (c *serverConn) send(files []*os.File, appendTo func([]byte) ([]byte, error)) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.transmit(files, appendTo)
}

// transmit sends one packet, with files. Its errors are of the packet and of the files: a
// connection that fails ends the session. c.sending is held.
func (c *serverConn) transmit(files []*os.File, appendTo func([]byte) ([]byte, error)) error {
	packet, err := appendTo(c.out[:0])
	if err != nil {
		return situation.Of(ErrLimit, "the answer does not fit into a packet: %v", err)
	}
	c.out = packet
	err = withFDs(files, nil, func(fds []int) error {
		// A client that left is not cut off: it may have said what it gave back, and reading comes to its end by itself.
		if err := c.put(packet, fds); err != nil && !errors.Is(err, seqpacket.ErrPeerClosed) {
			c.cancel(sendingFailed(err))
		}
		return nil
	})
	if err != nil {
		return situation.Of(ErrClosed, "it is being given back to the system: %v", err)
	}
	return nil
}

// put waits, if it must, no longer than the session lasts and the limit allows.
func (c *serverConn) put(packet []byte, fds []int) error {
	err := c.conn.TrySend(packet, fds)
	if !errors.Is(err, seqpacket.ErrWouldBlock) {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.server.limits.send))
	if c.ctx.Err() != nil {
		return err
	}
	err = c.conn.Send(packet, fds)
	if c.ctx.Err() == nil {
		_ = c.conn.SetWriteDeadline(time.Time{}) // or it would fail packets that need not wait
	}
	return err
}
