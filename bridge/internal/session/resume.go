package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file takes a session up again after its service has died: another process has the service's state, and listens at the same socket.

const (
	// resumeTime is how long a session waits for a service that has its state. The guard of a service holds its socket, so that connections wait.
	resumeTime = 10 * time.Second
	// absence is how long the socket may be without a listener: then the guard is gone, too.
	absence = 500 * time.Millisecond
)

// unconfirmed keeps the packets that the session may have to send again to a service that takes over: the service may not have carried them
// out, or their answers have not come. The service carries packets out in their order, so an answer also confirms all earlier packets that
// never get an answer.
type unconfirmed struct {
	mu     sync.Mutex
	token  []byte // nil: the session ends with its connection
	sent   uint64 // how many packets were sent after hello
	silent int    // how many of the last packets have no answer
	list   []sentPacket
}

type sentPacket struct {
	number uint64
	q      uint32 // 0: it has no answer
	data   []byte
}

// manySilent is how many packets without an answer a session sends in a row.
const manySilent = 64

// add keeps a packet that is about to be sent. It returns true if a packet with an answer should follow soon.
func (u *unconfirmed) add(q uint32, data []byte) (ask bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.token == nil {
		return false
	}
	u.sent++
	u.list = append(u.list, sentPacket{u.sent, q, slices.Clone(data)})
	if u.silent++; q != 0 {
		u.silent = 0
	}
	return u.silent == manySilent
}

// answered drops the packets that the answer to request q confirms.
func (u *unconfirmed) answered(q uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := slices.IndexFunc(u.list, func(p sentPacket) bool { return p.q == q })
	if at < 0 {
		return
	}
	left := u.list[:0]
	for i, p := range u.list {
		if i > at || i < at && p.q != 0 {
			left = append(left, p)
		}
	}
	clear(u.list[len(left):])
	u.list = left
}

// begin keeps packets from now on.
func (u *unconfirmed) begin(token []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.token = token
}

// lasts returns the token of the session; nil: it ends with its connection.
func (u *unconfirmed) lasts() []byte {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.token
}

// undo forgets the last packet, which was not sent.
func (u *unconfirmed) undo() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.token != nil {
		u.sent--
		u.list = u.list[:len(u.list)-1]
	}
}

// again returns the packets that are to be sent again, to a service whose last packet of this session was number `done`, and numbers them anew.
func (u *unconfirmed) again(done uint64) []sentPacket {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = slices.DeleteFunc(u.list, func(p sentPacket) bool { return p.q == 0 && p.number <= done })
	for i := range u.list {
		done++
		u.list[i].number = done
	}
	u.sent = done
	return slices.Clone(u.list)
}

// resume connects to a service that has the session, and sends it the packets again that it may not have. It runs in the receiving goroutine. It
// returns false if the session is over.
func (s *Session) resume(goodbye error) bool {
	if s.unconfirmed.lasts() == nil || goodbye != nil || s.hung.Err() != nil || s.Redial == nil {
		return false
	}
	s.resuming.Store(true)
	defer s.resuming.Store(false)
	_ = s.Conn().Close()    // those who send to the old connection get an error
	s.sending <- struct{}{} // and later ones wait
	ctx, cancel := context.WithTimeout(s.hung, resumeTime)
	defer cancel()
	refused := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		conn, err := s.Redial(ctx)
		if err == nil {
			var done uint64
			if done, err = s.helloAgain(ctx, conn); err == nil {
				s.conn.Store(conn)
				go s.sendAgain(conn, s.unconfirmed.again(done))
				if s.hung.Err() != nil { // HangUp may have closed the old connection
					_ = conn.Close()
				}
				return true
			}
			_ = conn.Close()
			refused = time.Now()
		}
		if ctx.Err() != nil || time.Since(refused) > absence || errors.Is(err, mempool.ErrStale) {
			<-s.sending
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// helloQuery is the number of the request of helloAgain. No other request has it.
const helloQuery = wire.MaxQuery

// helloAgain takes the session up on a new connection.
func (s *Session) helloAgain(ctx context.Context, conn *seqpacket.Conn) (done uint64, err error) {
	packet, err := wire.AppendRequest(nil, helloQuery, &wire.Hello{Versions: []uint64{wire.Version}, Features: s.features, Resume: s.ID, Token: s.unconfirmed.lasts()})
	deadline, _ := ctx.Deadline()
	_ = conn.SetReadDeadline(deadline)
	if err == nil {
		err = conn.Watch() // before the service gives the session to this connection
	}
	if err == nil {
		err = conn.Send(packet, nil)
	}
	if err != nil {
		return 0, err
	}
	for {
		packet, fds, err := conn.RecvInto(packets)
		if err != nil {
			return 0, err
		}
		h, err := wire.DecodeHeader(packet.Data)
		if err == nil && h.Q == helloQuery {
			var reply wire.HelloReply
			err = h.DecodeReply(&reply)
			packet.Free()
			if why, refused := errors.AsType[*wire.Error](err); refused {
				return 0, s.Refused("hello", why)
			}
			if err == nil && mempool.Epoch(reply.Epoch) != s.Epoch {
				err = typed.Errorf(mempool.ErrStale, "another service listens now")
			}
			_ = conn.SetReadDeadline(time.Time{})
			return reply.Done, err
		}
		var goodbye error
		err = s.handle(packet.Data, fds, &goodbye)
		packet.Free()
		if err = errors.Join(err, goodbye, fds.Close()); err != nil {
			return 0, err
		}
	}
}

// sendAgain sends packets again, cancels the calls again that were abandoned, and then lets others send.
func (s *Session) sendAgain(conn *seqpacket.Conn, all []sentPacket) {
	defer func() { <-s.sending }()
	for _, p := range all {
		if conn.Send(p.data, nil) != nil {
			return // the receiving goroutine takes the session up once more
		}
	}
	for _, q := range s.calls.givenUp() {
		if packet, err := wire.AppendRequest(nil, 0, &wire.Cancel{Request: uint64(q)}); err == nil {
			s.unconfirmed.add(0, packet)
			if conn.Send(packet, nil) != nil {
				return // as above
			}
		}
	}
	if s.leaving.Load() {
		_ = conn.CloseWrite() // HangUp has closed the old one
	}
}

// ask sends a request whose answer confirms the packets before.
func (s *Session) ask() {
	q, err := s.calls.add(&Call{Into: &wire.EmptyReply{}, op: "cancel", done: make(chan error, 1), Closing: true})
	if err == nil && s.send(context.Background(), q, &wire.Cancel{}) != nil && s.calls.remove(q) != nil {
		s.Leave()
	}
}
