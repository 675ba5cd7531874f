package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// This file sends packets to a client. If a client does not receive packets within the time ClientLimits.Send, the client's session ends,
// so that other sessions do not wait longer for memory that this client has.

// sender is the sending end of the connection of one client.
type sender struct {
	conn   *seqpacket.Conn
	limits ClientLimits
	ctx    context.Context // ends when the session ends
	cancel context.CancelCauseFunc

	notices notices
	telling sync.Mutex // held while waiting notices are sent

	sending sync.Mutex // held while a packet is sent
	out     []byte     // guarded by sending
}

// notify queues a notice of the service for this session. notify must not block, because the caller holds locks of the service.
func (s *sender) notify(n service.Notice) {
	if limit := s.limits.Notices; !s.notices.add(n, limit) {
		// The client does not read its notices, so it does not unmap the blocks that the service recalled. The service gets these blocks back
		// only if the server ends the session.
		s.cancel(typed.Errorf(mempool.ErrLimit, "%d notices wait for a client that reads none", limit))
	}
}

// sendNotices sends the notices of the service until the session ends.
func (s *sender) sendNotices() {
	for {
		select {
		case <-s.notices.wake:
		case <-s.ctx.Done():
			return
		}
		s.sendWaiting()
	}
}

// sendWaiting sends the notices that wait. It returns when all that waited at the call are sent, or the session has ended.
func (s *sender) sendWaiting() {
	s.telling.Lock()
	defer s.telling.Unlock()
	for n := s.notices.next(); n != nil && s.ctx.Err() == nil; n = s.notices.next() {
		s.sendNotice(n)
	}
}

func (s *sender) sendNotice(n service.Notice) {
	switch n := n.(type) {
	case service.Recall:
		for part := range slices.Chunk(n.Blocks, wire.MaxElements) {
			s.tell(&wire.Recall{Blocks: part})
		}
	case service.Failed:
		for part := range slices.Chunk(n.Buffers, wire.MaxElements) {
			s.tell(&wire.Failed{Buffers: part})
		}
	case service.Forget:
		s.tell(&wire.Forget{Timelines: n.Timelines})
	case service.MemberCame:
		s.sendMember(n)
	case service.MembersCame:
		for _, one := range n {
			s.sendMember(one)
		}
	case service.Wanted:
		s.tell(&wire.Wanted{Pool: n.Pool})
	}
}

// tell sends a notice. tell returns no error: if the server cannot send the notice, the connection has failed, and the session ends.
func (s *sender) tell(n wire.Notice) {
	_ = s.send(nil, func(dst []byte) ([]byte, error) { return wire.AppendNotice(dst, n) })
}

// sendMember sends the file of a member. If there is no file, or it is closed, the member has left. Then sendMember sends the notice
// without a file, because the client may have seen the member in the roster and may be waiting for this notice.
func (s *sender) sendMember(n service.MemberCame) {
	out := &wire.MemberCame{Channel: n.Channel, Role: string(n.Role), Seat: uint64(n.Seat), Member: n.Member, Export: wire.Export{FDs: 1}}
	packet := func(dst []byte) ([]byte, error) { return wire.AppendNotice(dst, out) }
	if n.File == nil || s.send([]*os.File{n.File}, packet) != nil {
		out.Export.FDs = 0
		_ = s.send(nil, packet) // send fails only for packets that are too large, and for files
	}
}

// mentionRoom is a number of bytes. If more than mentionRoom bytes wait in the socket's buffer until the client reads them, mention does
// not send its notice. A few notices fit into mentionRoom, which is much smaller than a socket's buffer.
const mentionRoom = 16 << 10

// mention sends a notice that the client does not need. It drops the notice if the client does not read, or if another goroutine is sending
// a packet. So mention never waits, and keeps the socket's buffer free for packets that must arrive.
func (s *sender) mention(n wire.Notice) {
	if !s.sending.TryLock() {
		return
	}
	defer s.sending.Unlock()
	unread, err := s.conn.Unread()
	if err != nil || unread > mentionRoom {
		return
	}
	packet, err := wire.AppendNotice(s.out[:0], n)
	if err != nil {
		return
	}
	s.out = packet
	err = s.conn.TrySend(packet, nil)
	if err != nil && !errors.Is(err, seqpacket.ErrWouldBlock) && !errors.Is(err, seqpacket.ErrPeerClosed) {
		s.cancel(sendingFailed(err))
	}
}

// tellWorking tells the client at intervals that request q still runs, until the caller calls the function `stop`. If q is 0, the notices
// tell the client that its later requests wait for the running request. A client that does not read gets no notices.
func (s *sender) tellWorking(q uint32) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-time.After(s.limits.Working):
				s.mention(&wire.Working{Request: uint64(q)})
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-stopped
	}
}

// sendingFailed returns why a session ends if the server cannot send a packet to the client.
func sendingFailed(err error) error {
	switch {
	case errors.Is(err, convert.ErrProtocol):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, seqpacket.ErrFDsInFlight):
		return typed.Errorf(mempool.ErrLimit, "the client does not take what it is sent: %v", err)
	}
	return fmt.Errorf("sending failed: %w", err)
}

// goodbye tells the client why the server closes the connection, unless the client's socket is full.
func (s *sender) goodbye(reason error) {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.conn.SetWriteDeadline(time.Time{}) // the end of the session has set a deadline
	farewell(s.conn, reason)
}

// farewell sends a goodbye, unless the client's socket is full.
func farewell(conn *seqpacket.Conn, reason error) {
	if packet, err := wire.AppendNotice(nil, &wire.Goodbye{Reason: *convert.WireError(reason)}); err == nil {
		_ = conn.TrySend(packet, nil) // the goodbye need not arrive
	}
}

// answer answers request q with r and files, or with err if err is not nil. If q is 0, the client wants no answer: see fail.
func (c *connection) answer(q uint32, r wire.Reply, err error, files ...*os.File) {
	switch {
	case err != nil:
		c.fail(q, err)
	case q != 0:
		sent := c.timings.end(q)
		c.replySent(q, sent, c.send(files, func(dst []byte) ([]byte, error) { return wire.AppendReply(dst, q, r) }))
	}
}

// replySent records that the answer to request q was sent. If the answer could not be sent, replySent sends the error instead.
func (c *connection) replySent(q uint32, sent func(result string), err error) {
	if err != nil {
		c.failed(q, sent, err)
		return
	}
	sent("ok")
	c.unsure.add(q, c.session, c.conn)
}

// replyLease answers with a lease. The reply with a session's first lease on a block has the export of the block. This reply must reach the
// client before the replies with other leases on the block. So replyLease first locks c.sending and then marks the block as mapped: a
// goroutine that finds the block mapped waits for c.sending.
func (c *connection) replyLease(q uint32, g service.GrantedLease, err error) {
	if err == nil && g.Grant.Base > 0 && !c.features[wire.FeatureRanges] {
		err = errors.Join(typed.Errorf(convert.ErrUnsupported, "buffer %d is a part of a block, which the client is too old to know: update poolbridge there",
			g.Grant.Buffer), g.Lease.Undo(false))
	}
	if err != nil {
		c.fail(q, err)
		return
	}
	out := convert.WireGrant(g.Grant)
	var files []*os.File
	first := false
	sent := c.timings.end(q)
	c.sending.Lock()
	if !g.Mapped || c.exportLost {
		var x mempool.Export
		if x, first, err = g.Lease.Export(); first {
			out.Export, files = convert.WireExport(x)
		}
	}
	if err == nil {
		err = c.sendLocked(files, func(dst []byte) ([]byte, error) {
			return wire.AppendReply(dst, q, &wire.GrantReply{Grant: out, Version: g.Version})
		})
	}
	if err != nil {
		c.exportLost = c.exportLost || first
		err = errors.Join(err, g.Lease.Undo(first))
	}
	c.sending.Unlock()
	c.replySent(q, sent, err)
}

// fail answers request q with an error. If q is 0, the client wants no answer, and fail sends nothing. But if the error ends the session,
// fail sends a goodbye to this client.
func (c *connection) fail(q uint32, err error) { c.failed(q, c.timings.end(q), err) }

// failed does what fail does, for a caller that has ended the timing.
func (c *connection) failed(q uint32, sent func(result string), err error) {
	e := convert.WireError(err)
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

// send sends the packet that appendTo makes, with files.
func (s *sender) send(files []*os.File, appendTo func([]byte) ([]byte, error)) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.sendLocked(files, appendTo)
}

// sendLocked does what send does. It returns errors of the packet and of the files, but no error of the connection, which ends the session.
func (s *sender) sendLocked(files []*os.File, appendTo func([]byte) ([]byte, error)) error {
	packet, err := appendTo(s.out[:0])
	if err != nil {
		return typed.Errorf(mempool.ErrLimit, "the answer does not fit into a packet: %v", err)
	}
	s.out = packet
	err = seqpacket.WithFiles(files, func(fds []int) error {
		// ErrPeerClosed means that the client has left. The session goes on until the server has read the client's last packets.
		if err := s.put(packet, fds); err != nil && !errors.Is(err, seqpacket.ErrPeerClosed) {
			s.cancel(sendingFailed(err))
		}
		return nil
	})
	if err != nil {
		return typed.Errorf(mempool.ErrClosed, "its memory is being given back to the system: %v", err)
	}
	return nil
}

// put sends a packet. If the client's socket is full, put waits until the socket has room, the session ends, or the time ClientLimits.Send
// has passed.
func (s *sender) put(packet []byte, fds []int) error {
	err := s.conn.TrySend(packet, fds)
	if !errors.Is(err, seqpacket.ErrWouldBlock) {
		return err
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.limits.Send))
	if s.ctx.Err() != nil {
		return err
	}
	err = s.conn.Send(packet, fds)
	if s.ctx.Err() == nil {
		_ = s.conn.SetWriteDeadline(time.Time{}) // with a deadline that has passed, later packets would fail
	}
	return err
}
