package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// connection is the server's end of the connection of one client. Only the goroutine that runs serve sets the fields session, denied,
// leaves and features.
type connection struct {
	sender
	server   *Server
	peer     mempool.Peer // what the kernel says, without the field Process
	unknown  error        // why the kernel does not say it
	session  *service.Session
	denied   bool   // the peer may not have a session
	returns  bool   // the connection counts as returning: see Server.admit
	leaves   bool   // the client has said bye
	packet   uint64 // how many packets came after hello, in this connection and those of the session before
	resumed  bool   // the session was another connection's
	unsure   unconfirmed
	features map[string]bool // features that both the client and the service have; hello sets them

	work    sync.WaitGroup // the sender of notices, and the requests that wait
	waits   waits
	timings timings
	// exportLost says that an export could not be sent, so Grant.Mapped may be wrong for this session. sender.sending guards it.
	exportLost bool
}

func (s *Server) newConn(conn *seqpacket.Conn) *connection {
	c := &connection{server: s, features: make(map[string]bool), waits: waits{cancels: make(map[uint64]context.CancelFunc)}, timings: timings{report: s.config.Answered},
		sender: sender{conn: conn, limits: s.limits, notices: notices{wake: make(chan struct{}, 1)}}}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	c.peer, c.unknown = peerOf(conn)
	return c
}

// serve runs the session until it ends.
func (c *connection) serve() {
	log := c.server.config.Log
	defer closeLogged(log, c.conn)
	defer c.cancel(nil)
	// When the session ends, these deadlines end every waiting send and receive. Set the write deadline first: the read deadline makes serve
	// call goodbye, and goodbye sets a new write deadline, which must stay.
	stop := context.AfterFunc(c.ctx, func() {
		_ = c.conn.SetWriteDeadline(longAgo)
		_ = c.conn.SetReadDeadline(longAgo)
	})
	defer stop()

	peer, err := c.peer, c.unknown
	if err != nil {
		c.server.complaints.warn(peer.UID, "a connection was refused: the kernel does not name its user and process", "error", err)
		c.goodbye(typed.Errorf(mempool.ErrUnavailable, "the kernel does not say whose the connection is: %v", err))
		return
	}
	if allowed := c.server.config.MayConnect; allowed != nil && !allowed(peer) {
		c.server.complaints.warn(peer.UID, "a connection was refused", "uid", peer.UID, "pid", peer.PID)
		c.denied = true
		c.server.turnAway(c, peer)
		return
	}
	process, err := c.conn.PeerProcess()
	if err != nil {
		c.server.complaints.warn(peer.UID, "a connection was refused: the end of its process cannot be watched", "uid", peer.UID, "pid", peer.PID, "error", err)
		c.goodbye(unwatched(err))
		return
	}
	peer.Process = process.ID()
	// A session ends with its process, even if a forked child, or a process that was sent the socket, keeps the connection open. The packets
	// that the process had sent are still read.
	process.Watch(func() { _ = c.conn.CloseRead() })
	err = c.run(peer)
	if c.session == nil {
		closeLogged(log, process)
		return
	}
	how, why := c.ending(err)
	c.cancel(err)
	c.work.Wait()
	reclaimed := c.session.End(how, why, process.Gone())
	c.server.lingers(c)
	go func() {
		<-reclaimed
		log.Debug("what a session held is reclaimed", "session", c.session.ID(), "pid", peer.PID)
		closeLogged(log, process)
		c.server.reclaimed(c)
	}()
}

// unwatched returns the error for a client whose process the server cannot watch.
func unwatched(err error) error {
	sentinel := mempool.ErrUnavailable
	if errors.Is(err, seqpacket.ErrFDTableFull) {
		sentinel = mempool.ErrLimit
	}
	return typed.Errorf(sentinel, "the service cannot watch the client's process, and so accepts no session: %v", err)
}

// peerOf returns the peer's user, groups and process, as the kernel reports them.
func peerOf(conn *seqpacket.Conn) (mempool.Peer, error) {
	p, err := conn.Peer()
	return mempool.Peer{UID: p.UID, GID: p.GID, Groups: p.Groups, PID: int32(p.PID)}, err
}

// packets has the buffers for received packets. A decoded message does not use the buffer of its packet, so the buffer is free after
// decoding.
var packets = seqpacket.NewBuffers(wire.MaxPacket)

// run reads packets until the connection or the server ends.
func (c *connection) run(peer mempool.Peer) error {
	c.setReadDeadline(time.Now().Add(c.limits.Hello))
	for {
		packet, fds, err := c.conn.RecvInto(packets)
		if err != nil {
			return c.readingEnded(breach(err))
		}
		if came := fds.Len(); came > 0 {
			err := typed.Errorf(convert.ErrProtocol, "%d file descriptors came along, and only the service sends any", came)
			packet.Free()
			c.fail(0, err)
			return errors.Join(err, fds.Close())
		}
		q, r, err := wire.DecodeRequest(packet.Data)
		packet.Free()
		_, greets := r.(*wire.Hello)
		if later, ok := errors.AsType[*wire.UnknownError](err); ok {
			err = unknown(later.Name)
		}
		switch {
		case c.waits.has(q): // two replies would have the same number, and the client could not tell them apart
			err = typed.Errorf(convert.ErrProtocol, "request %d is still waiting: its number can be used again once its reply came", q)
			q = 0
		case err != nil:
		case c.session == nil:
			err = c.hello(q, r, peer)
		case greets:
			err = typed.Errorf(convert.ErrProtocol, "the session has said hello before")
		default:
			c.packet++
			c.session.BeginRequest(service.Request{Packet: c.packet, Query: q})
			if !c.resumed || !c.answerAgain(q, r) {
				c.handle(q, r)
			}
		}
		if err == nil {
			continue
		}
		c.fail(q, err)
		if c.session == nil || convert.WireError(err).Code == wire.CodeProtocol {
			return err
		}
	}
}

func notAllowed(peer mempool.Peer) error {
	return typed.Errorf(mempool.ErrDenied, "user %d may not use this service", peer.UID)
}

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// setReadDeadline sets a deadline for reading, unless the session has ended. When the session ends, serve sets the deadline longAgo, and
// this deadline must stay: it makes the server stop reading.
func (c *connection) setReadDeadline(t time.Time) {
	_ = c.conn.SetReadDeadline(t)
	if c.ctx.Err() != nil {
		_ = c.conn.SetReadDeadline(longAgo)
	}
}

// breaches are the errors that occur only if the peer breaks the protocol.
var breaches = []error{seqpacket.ErrDataTruncated, seqpacket.ErrControlTruncated, seqpacket.ErrSurplusFDs, seqpacket.ErrEmptyPacket}

// breach wraps an error that is one of breaches with [convert.ErrProtocol].
func breach(err error) error {
	if slices.ContainsFunc(breaches, func(one error) bool { return errors.Is(err, one) }) {
		return fmt.Errorf("%w: %w", convert.ErrProtocol, err)
	}
	return err
}

// The server calls readingEnded when it receives no more packets of the client; err is the error of the last receive. readingEnded returns
// the error that ends the session, or nil if the client closed the connection. If the server ends the session, readingEnded sends a goodbye
// to the client.
func (c *connection) readingEnded(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, seqpacket.ErrPeerClosed): // ErrPeerClosed: the client did not read all packets before it left
		return nil
	case c.server.ctx.Err() != nil:
		c.goodbye(typed.Errorf(mempool.ErrClosed, "the service is shutting down"))
	case c.ctx.Err() != nil:
		err = context.Cause(c.ctx)
		c.goodbye(err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = typed.Errorf(convert.ErrProtocol, "no hello came within %v of the connection", c.limits.Hello)
		c.goodbye(err)
	case errors.Is(err, convert.ErrProtocol):
		c.goodbye(err)
	}
	return err
}

// ending returns how and why the session ended, for the service's history.
func (c *connection) ending(err error) (how mempool.SessionEnding, why string) {
	switch {
	case c.server.ctx.Err() != nil:
		return mempool.SessionShutdown, ""
	case errors.Is(context.Cause(c.ctx), errEnded):
		return mempool.SessionClosed, ""
	case err != nil:
		return mempool.SessionFailed, err.Error()
	case c.leaves:
		return mempool.SessionLeft, ""
	}
	return mempool.SessionLost, ""
}

// hello opens the session. r is the client's first request and must be a Hello.
func (c *connection) hello(q uint32, r wire.Request, peer mempool.Peer) error {
	h, ok := r.(*wire.Hello)
	if !ok || q == 0 {
		return typed.Errorf(convert.ErrProtocol, "the first request of a session is a numbered hello, not %s", r.Op())
	}
	if c.denied {
		return notAllowed(peer)
	}
	if !slices.Contains(h.Versions, wire.Version) {
		return typed.Errorf(convert.ErrVersion, "the service is poolsvc %s and speaks version %d of the protocol, the client %v", program.Version(),
			wire.Version, h.Versions)
	}
	var session *service.Session
	var err error
	c.resumed = h.Resume != 0
	switch {
	case !c.resumed:
		if c.server.returned(c) {
			err = c.server.count(c, false)
		}
		if err == nil {
			session, err = c.server.svc.OpenSession(peer, h.Name, c.notify)
		}
	case len(h.Token) == len(mempool.Epoch{}):
		if c.server.returned(c) {
			_ = c.server.count(c, true) // it returns no error for a resumed session
		}
		session, c.packet, err = c.server.svc.Resume(peer, h.Resume, mempool.Epoch(h.Token), c.notify)
	default:
		err = typed.Errorf(convert.ErrProtocol, "a token has %d bytes, not %d", len(mempool.Epoch{}), len(h.Token))
	}
	if err != nil {
		return err
	}
	c.session = session
	features := c.agree(h.Features)
	c.server.opened(c)
	c.setReadDeadline(time.Time{})
	c.work.Go(c.sendNotices)
	out := &wire.HelloReply{Version: wire.Version, Epoch: wire.Epoch(c.server.svc.Epoch()), Session: session.ID(), PID: uint64(os.Getpid()), Features: features, Done: c.packet}
	if token, lasts := session.Token(); lasts {
		out.Token = token[:]
	}
	failpoint.At("hello/answering")
	c.answer(q, out, nil)
	if c.resumed {
		c.sendWaiting() // the client then knows at the next reply which of its buffers are lost
	}
	failpoint.At("hello/answered")
	return nil
}

// answerAgain answers a request that the session has carried out, and whose answer the client may lack. It returns false if the session has not
// carried the request out, or if the request changed nothing.
func (c *connection) answerAgain(q uint32, r wire.Request) bool {
	answer, did := c.session.Answer(q)
	if !did {
		return false
	}
	failpoint.At("answer/again")
	switch r := r.(type) {
	case *wire.Alloc, *wire.AllocRange, *wire.Get, *wire.LeaseBuffer:
		g, err := answer.Granted()
		c.replyLease(q, g, err)
	case *wire.Create:
		p, err := answer.MadePool()
		c.replyPool(q, p, err)
	case *wire.Open:
		p, err := c.session.FindPool(answer.From)
		c.replyPool(q, p, err)
	case *wire.Publish:
		c.answer(q, &wire.PublishReply{Version: answer.From}, nil)
	case *wire.GetTimeline:
		c.timeline(q, r)
	case *wire.MakeChannel:
		reply, err := makeChannel(c.session, r) // it is there
		c.answer(q, reply, err)
	case *wire.Join:
		j, err := answer.Joined()
		c.replyJoined(q, j, err)
	default:
		c.done(q, nil)
	}
	return true
}

// unconfirmed are the requests whose answers were sent, and which the client may not have yet.
type unconfirmed struct {
	mu       sync.Mutex
	requests []uint32
}

// manyUnconfirmed is how many answers the server sends before it asks whether the client has them.
const manyUnconfirmed = 64

// add notes that the answer to request q of session s was sent by conn. When conn holds nothing that the client has not read, the client has
// all answers.
func (u *unconfirmed) add(q uint32, s *service.Session, conn *seqpacket.Conn) {
	if _, lasts := s.Token(); !lasts {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.requests = append(u.requests, q); len(u.requests)%manyUnconfirmed != 0 {
		return
	}
	if unread, err := conn.Unread(); err == nil && unread == 0 {
		s.Answered(u.requests)
		u.requests = u.requests[:0]
	}
}
