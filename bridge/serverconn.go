package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// serverConn is the server's end of one session.
type serverConn struct {
	server  *Server
	conn    *seqpacket.Conn
	session *mempool.Session
	notices chan mempool.Notice
	out     sync.Pool // of *[]byte

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // the sender of notices and the requests that wait

	mu      sync.Mutex
	waiting map[uint32]context.CancelFunc
}

// serve runs the session to its end.
func (c *serverConn) serve(ctx context.Context) {
	log := c.server.config.Log
	defer closeLogged(log, c.conn)
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	// What ends the session ends its reading too.
	stop := context.AfterFunc(c.ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	peer, err := peerOf(c.conn)
	if err != nil {
		log.Warn("a connection was refused: the kernel does not say whose it is", "error", err)
		return
	}
	if allowed := c.server.config.MayConnect; allowed != nil && !allowed(peer) {
		c.fail(0, situation(ErrDenied, "user %d may not use this service", peer.UID))
		log.Warn("a connection was refused", "uid", peer.UID, "pid", peer.PID)
		return
	}
	process, err := c.conn.PeerProcess()
	if err != nil {
		log.Warn("a connection was refused: the end of its process cannot be watched", "pid", peer.PID, "error", err)
		return
	}
	err = c.run(peer)
	if c.session == nil {
		closeLogged(log, process)
		return
	}
	c.cancel(err)
	c.work.Wait()
	settled := c.session.End(process.Gone())
	log.Debug("a session ended", "session", c.session.ID(), "pid", peer.PID, "reason", err)
	go func() {
		<-settled
		closeLogged(log, process)
	}()
}

func peerOf(conn *seqpacket.Conn) (mempool.Peer, error) {
	p, err := conn.Peer()
	return mempool.Peer{UID: p.UID, GID: p.GID, Groups: p.Groups, PID: int32(p.PID)}, err
}

// run reads packets until the connection or the server ends.
func (c *serverConn) run(peer mempool.Peer) error {
	c.conn.SetReadDeadline(time.Now().Add(helloLimit))
	buf := make([]byte, wire.MaxPacket)
	for {
		n, fds, err := c.conn.Recv(buf)
		if err != nil {
			return c.readingEnded(err)
		}
		if came := fds.Len(); came > 0 {
			err := situation(ErrProtocol, "%d file descriptors came along, and only the service sends any", came)
			c.fail(0, err)
			return errors.Join(err, fds.Close())
		}
		q, r, err := wire.DecodeRequest(buf[:n])
		if err == nil && c.session == nil {
			err = c.hello(q, r, peer)
		} else if err == nil {
			c.handle(q, r)
		}
		if err == nil {
			continue
		}
		c.fail(q, err)
		if c.session == nil || errors.Is(err, wire.ErrProtocol) {
			return err
		}
	}
}

// readingEnded tells why, and says goodbye where the client is not the one who left.
func (c *serverConn) readingEnded(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case c.server.ctx.Err() != nil:
		c.sendNotice(&wire.Goodbye{Reason: "the service is shutting down"})
	case c.ctx.Err() != nil:
		err = context.Cause(c.ctx)
		c.sendNotice(&wire.Goodbye{Reason: err.Error()})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = situation(ErrProtocol, "no hello came within %v of the connection", helloLimit)
		c.fail(0, err)
	case errors.Is(err, seqpacket.ErrDataTruncated), errors.Is(err, seqpacket.ErrControlTruncated),
		errors.Is(err, seqpacket.ErrSurplusFDs), errors.Is(err, seqpacket.ErrEmptyPacket):
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
		c.fail(0, err)
	}
	return err
}

// hello opens the session.
func (c *serverConn) hello(q uint32, r wire.Request, peer mempool.Peer) error {
	h, ok := r.(*wire.Hello)
	if !ok || q == 0 {
		return situation(ErrProtocol, "the first request of a session is a numbered hello, not %s", r.Op())
	}
	if !slices.Contains(h.Versions, wire.Version) {
		return situation(ErrVersion, "the service speaks version %d, the client %v", wire.Version, h.Versions)
	}
	session, err := c.server.svc.OpenSession(peer, c.notify)
	if err != nil {
		return err
	}
	c.session = session
	c.conn.SetReadDeadline(time.Time{})
	if c.ctx.Err() != nil { // the deadline that its end set must stand
		c.conn.SetReadDeadline(time.Unix(1, 0))
	}
	c.work.Add(1)
	go c.sendNotices()
	c.reply(q, &wire.HelloReply{Version: wire.Version, Epoch: wire.Epoch(c.server.svc.Epoch()), Session: session.ID(),
		PID: uint64(os.Getpid())}, nil)
	c.server.config.Log.Debug("a session began", "session", session.ID(), "uid", peer.UID, "pid", peer.PID, "program", h.Name)
	return nil
}

// notify takes what the service has to say to this session. It must not block: the service's locks are held.
func (c *serverConn) notify(n mempool.Notice) {
	select {
	case c.notices <- n:
	default: // the client reads nothing: only its end frees what it was asked for
		c.cancel(fmt.Errorf("%d notices wait for a client that reads none", maxNotices))
	}
}

func (c *serverConn) sendNotices() {
	defer c.work.Done()
	for {
		select {
		case n := <-c.notices:
			if r, ok := n.(mempool.Recall); ok {
				for part := range slices.Chunk(r.Blocks, wire.MaxElements) {
					c.sendNotice(&wire.Recall{Blocks: part})
				}
			}
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *serverConn) sendNotice(n wire.Notice) {
	c.send(nil, func(dst []byte) ([]byte, error) { return wire.AppendNotice(dst, n) })
}

// reply answers request q, if it wanted an answer; fds go along.
func (c *serverConn) reply(q uint32, r wire.Reply, fds []int) bool {
	if q == 0 {
		return true
	}
	return c.send(fds, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, r) })
}

// fail answers request q with an error; to a client that wants no answers it says nothing, unless the session ends.
func (c *serverConn) fail(q uint32, err error) {
	e := wireError(err)
	if e.Code == wire.CodeInternal {
		c.server.config.Log.Error("a request failed", "error", err)
	}
	if q == 0 {
		if e.Code == wire.CodeProtocol || c.session == nil {
			c.sendNotice(&wire.Goodbye{Reason: e.Error()})
		}
		return
	}
	c.send(nil, func(dst []byte) ([]byte, error) { return wire.AppendError(dst, q, e) })
}

// send sends one packet; a client that does not take it within sendLimit is cut off.
func (c *serverConn) send(fds []int, appendTo func([]byte) ([]byte, error)) bool {
	buf, ok := c.out.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer c.out.Put(buf)
	packet, err := appendTo((*buf)[:0])
	if err == nil {
		*buf = packet
		if err = c.conn.TrySend(packet, fds); errors.Is(err, seqpacket.ErrWouldBlock) {
			c.conn.SetWriteDeadline(time.Now().Add(sendLimit))
			err = c.conn.Send(packet, fds)
		}
	}
	if err != nil {
		c.cancel(fmt.Errorf("sending failed: %w", err))
		return false
	}
	return true
}
