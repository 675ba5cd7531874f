// Package session is a client's connection with a service: its requests with their replies, the notices of the service, and what the client
// has of the service: timelines, pools, blocks, and leases.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// ErrDisconnected means that the connection to the service is gone. The session has ended with the connection.
var ErrDisconnected = errors.New("disconnected from the service")

// ErrClientClosed is the error of every call after [Session.BeginClose].
var ErrClientClosed = typed.Errorf(mempool.ErrClosed, "the client was closed")

// closeGrace is how long a session that is being closed waits for a service that does not answer.
const closeGrace = 2 * time.Second

// WorkLimit is how long closing a session, and the release of a frame, wait for this client's own work. It changes only in tests.
var WorkLimit = 30 * time.Second

// Session is a connection with a service. Several goroutines may call its methods.
type Session struct {
	Handlers
	conn        atomic.Pointer[seqpacket.Conn]
	unconfirmed unconfirmed
	features    []string // that the client offers
	resuming    atomic.Bool
	reading     chan struct{} // has a value while a goroutine receives packets; it guards goodbye and fault
	goodbye     error         // what the service has said before it closes the connection
	fault       error         // with which a caller's receiving has ended
	reader      reader
	leaving     atomic.Bool     // bye was sent
	hung        context.Context // ends when HangUp has given up waiting
	hang        context.CancelFunc
	// ID and Epoch identify the session and the run of the service.
	ID    uint64
	Epoch mempool.Epoch
	// Timelines are the timelines that the session has mapped.
	Timelines Timelines
	// Blocks are the pools and the blocks that the session has mapped, and its leases.
	Blocks Blocks
	// LongestWait is how long the protocol allows one request to wait at the service. If a call may wait longer, the session sends the request
	// again after this time.
	LongestWait time.Duration
	// DeadlineGrace is how long a call still waits for the service's answer after the deadline of the call's context. This answer says what
	// the call waited for.
	DeadlineGrace time.Duration

	calls      calls
	tasks      tasks
	sending    chan struct{}  // has a value while a packet is sent
	background sync.WaitGroup // goroutines that HangUp waits for
	done       chan struct{}  // closed when the connection is gone; calls.err then says why

	// working ends when the session is being closed or the connection is gone. linked ends only when the connection is gone. The causes of
	// these two contexts say why they ended.
	working, linked context.Context
	stop, unlink    context.CancelCauseFunc
}

// Handlers has the functions that a session calls. They are set before [Session.Hello].
type Handlers struct {
	// Refused returns the error of a request that the service refused.
	Refused func(op string, why *wire.Error) error
	// MemberCame handles the notice about a member of a channel. It runs in the receiving goroutine, and must not send.
	MemberCame func(*wire.MemberCame, *seqpacket.FDs)
	// Wanted handles the notice that somebody waits for memory of a pool. It runs as a task.
	Wanted func(pool uint64)
	// Collect releases the leases that have come back from channels of a pool.
	Collect func(ctx context.Context, pool uint64)
	// Redial connects again to the service; nil: the session ends with its connection.
	Redial func(context.Context) (*seqpacket.Conn, error)
	// Lost runs when the connection is gone.
	Lost func()
}

// New makes a session of a connection. [Session.Hello] begins it.
func New(conn *seqpacket.Conn) *Session {
	s := &Session{LongestWait: 24 * time.Hour, DeadlineGrace: 250 * time.Millisecond, done: make(chan struct{}), sending: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		calls: calls{pending: make(map[uint32]*Call), quiet: make(chan struct{})}, tasks: tasks{wake: make(chan struct{}, 1)}}
	s.conn.Store(conn)
	s.Timelines.start(s)
	s.Blocks.start(s)
	s.hung, s.hang = context.WithCancel(context.Background())
	s.working, s.stop = context.WithCancelCause(context.Background())
	s.linked, s.unlink = context.WithCancelCause(context.Background())
	return s
}

// Hello begins the session, which offers the service `more` features besides those that every client has. If Hello fails, the connection is closed.
func (s *Session) Hello(ctx context.Context, program string, more ...string) error {
	if err := s.Conn().Watch(); err != nil {
		return errors.Join(err, s.Conn().Close())
	}
	go s.receive()
	go s.tasks.run(s.done)
	var reply wire.HelloReply
	s.features = append([]string{wire.FeatureTimelines, wire.FeatureChannels, wire.FeatureRanges}, more...)
	begin := func(*seqpacket.FDs) { // in the receiving goroutine, which may find at once that the service has died
		s.Epoch, s.ID = mempool.Epoch(reply.Epoch), reply.Session
		s.unconfirmed.begin(reply.Token)
	}
	err := s.Do(ctx, &wire.Hello{Versions: []uint64{wire.Version}, Name: program,
		Features: s.features}, &Call{Into: &reply, OnReply: begin})
	if err == nil && reply.Version != wire.Version {
		err = typed.Errorf(convert.ErrVersion, "the service chose version %d, which this client did not offer", reply.Version)
	}
	if err != nil {
		s.hang() // so that no successor of the service gets the session
		err = errors.Join(err, s.Conn().Close())
		<-s.done
		return err
	}
	s.Timelines.available = slices.Contains(reply.Features, wire.FeatureTimelines)
	return nil
}

// Conn returns the connection. It is another one after [Session.resume].
func (s *Session) Conn() *seqpacket.Conn { return s.conn.Load() }

// Done returns a channel that is closed when the connection is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Working returns a context that ends when the session is being closed or the connection is gone. Its cause says why.
func (s *Session) Working() context.Context { return s.working }

// Over returns nil while the context Working has not ended, and its cause after that.
func (s *Session) Over() error {
	if s.working.Err() == nil {
		return nil
	}
	return context.Cause(s.working)
}

// Linked returns a context that ends when the connection is gone. Its cause says why.
func (s *Session) Linked() context.Context { return s.linked }

// Joint returns a context that ends when ctx ends or when the context Working ends.
func (s *Session) Joint(ctx context.Context) (context.Context, func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.working, func() { cancel(context.Cause(s.working)) })
	return joined, func() {
		stop()
		cancel(nil)
	}
}

// AddTask adds a task: see the type tasks.
func (s *Session) AddTask(f func()) { s.tasks.add(f) }

// packets has the buffers for received packets. A decoded message does not use the buffer of its packet, so the buffer is free after
// decoding.
var packets = seqpacket.NewBuffers(wire.MaxPacket)

// receive reads packets of the service until the connection ends. While a caller waits for a reply, the caller reads them itself: see readFor.
func (s *Session) receive() {
	for {
		err := s.Conn().AwaitPacket()
		s.reading <- struct{}{}
		if s.fault != nil {
			err, s.fault = s.fault, nil
		}
		for err == nil {
			err = s.receiveOne(s.Conn().TryRecvInto(packets))
		}
		if !errors.Is(err, seqpacket.ErrWouldBlock) && (errors.Is(err, convert.ErrProtocol) || !s.resume(s.goodbye)) {
			s.end(err, s.goodbye)
			<-s.reading
			return
		}
		<-s.reading
	}
}

// receiveOne handles a packet that was received, or the error of receiving.
func (s *Session) receiveOne(packet *seqpacket.Packet, fds *seqpacket.FDs, err error) error {
	if err == nil {
		err = s.handle(packet.Data, fds, &s.goodbye)
		packet.Free()
		err = errors.Join(err, fds.Close()) // closes the files that no handler took
	}
	return err
}

// handle handles one packet of the service.
func (s *Session) handle(packet []byte, fds *seqpacket.FDs, goodbye *error) error {
	h, err := wire.DecodeHeader(packet)
	if err != nil {
		return err
	}
	if h.Q != 0 {
		s.unconfirmed.answered(h.Q)
		c := s.calls.remove(h.Q)
		if c == nil {
			return typed.Errorf(convert.ErrProtocol, "a reply to request %d, but there is no such request", h.Q)
		}
		defer s.Leave() // Leave comes after the undo of the reply has become a task
		return s.answered(c, fds, h.DecodeReply(c.Into))
	}
	n, err := h.DecodeNotice()
	switch n := n.(type) {
	case *wire.Recall:
		s.tasks.add(func() { s.Blocks.recall(n.Blocks) })
	case *wire.Goodbye:
		*goodbye = s.Refused("goodbye", &n.Reason)
	case *wire.Failed:
		s.Blocks.MarkFailed(n.Buffers)
	case *wire.Forget:
		s.tasks.add(func() { s.Timelines.Forget(n.Timelines) })
	case *wire.MemberCame:
		s.MemberCame(n, fds)
	case *wire.Wanted:
		s.tasks.add(func() { s.Wanted(n.Pool) })
	}
	if errors.Is(err, wire.CodeUnsupported) {
		return nil // only a later version has this notice; this client can ignore it
	}
	return err
}

// end makes every waiting call fail. The caller calls end when the connection is gone or the service broke the protocol.
func (s *Session) end(err, goodbye error) {
	err = fmt.Errorf("%w: %w; the session's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "+
		"are gone; what is mapped can still be read: dial again for a new session", ErrDisconnected, cmp.Or(goodbye, err))
	_ = s.Conn().Close()
	err = s.calls.fail(err)
	s.stop(err)
	s.unlink(err)
	close(s.done)
	s.Lost()
}

// BeginClose makes waiting calls fail, and later calls, too. It reports whether this is the first call of BeginClose.
func (s *Session) BeginClose() (first bool) {
	if !s.calls.close() {
		return false
	}
	s.calls.abandonAll(ErrClientClosed)
	s.reader.wake()
	s.stop(ErrClientClosed)
	return true
}

// AwaitTasks waits until the session has done what the notices that have come ask for, unless ctx or the connection ends before.
func (s *Session) AwaitTasks(ctx context.Context) {
	select {
	case <-s.tasksDone():
	case <-ctx.Done():
	case <-s.done:
	}
}

// AwaitCancelled waits until the service has answered all calls, no caller is between Enter and Leave, and the leases that came too late
// are released. It stops waiting when the connection is gone, or after closeGrace. It waits because, if the session ended with such a lease,
// the service could not use that memory again before this process ends.
func (s *Session) AwaitCancelled() {
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	for _, wait := range []func() <-chan struct{}{
		func() <-chan struct{} { return s.calls.quiet },
		s.tasksDone,
	} {
		select {
		case <-wait():
		case <-s.done:
			return
		case <-grace.C:
			return
		}
	}
}

// tasksDone returns a channel that is closed when all present tasks have run. Tasks run in order.
func (s *Session) tasksDone() <-chan struct{} {
	done := make(chan struct{})
	s.tasks.add(func() { close(done) })
	return done
}

// HangUp ends the connection. It waits until the service has ended the session and closed the service's end of the connection, and until the
// goroutines of [Session.Go] and [Session.Background] have ended.
func (s *Session) HangUp() error {
	grace := time.After(closeGrace)
	s.bye(grace)
	if s.Conn().CloseWrite() == nil || s.unconfirmed.lasts() != nil {
		select {
		case <-s.done:
		case <-grace:
		}
	}
	s.hang()
	err := s.Conn().Close()
	<-s.done
	s.background.Wait()
	return err
}

// Grace returns a context for the steps of closing that wait for others. It ends with the connection, and after the time closeGrace.
func (s *Session) Grace() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.linked, closeGrace)
}

// bye tells the service that the client closes the connection. If sending would have to wait, bye sends nothing; but it waits for a service
// that takes over.
func (s *Session) bye(grace <-chan time.Time) {
	packet, err := wire.AppendRequest(nil, 0, &wire.Bye{})
	if err != nil {
		return
	}
	select {
	case s.sending <- struct{}{}:
	default:
		if !s.resuming.Load() {
			return
		}
		select {
		case s.sending <- struct{}{}:
		case <-s.done:
			return
		case <-grace:
			return
		}
	}
	s.leaving.Store(true)
	s.unconfirmed.add(0, packet)
	_ = s.Conn().TrySend(packet, nil) // the connection may be gone
	<-s.sending
}
