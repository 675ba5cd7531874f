package bridge

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// ServerConfig configures a [Server]. Its zero value is useful.
type ServerConfig struct {
	// Mode of the socket file; 0 for 0600. The socket's directory is made 0700 if it does not exist.
	Mode os.FileMode
	// MayConnect says who may have a session, from what the kernel says about the peer; nil for all that can open the
	// socket. What a session may reach is for the access list of each pool.
	MayConnect func(mempool.Peer) bool
	// MaxSessions is how many there may be at a time, with those that ended while their process lives on and may still use
	// memory of theirs; 0 for 4096.
	MaxSessions int
	// MaxWaits is how many requests of all sessions may wait at a time; 0 for 65,536.
	MaxWaits int
	// Unused is for how long nobody has to be connected, from the start on as well, before [Server.Unused] says so; 0: it
	// never does.
	Unused time.Duration
	// Answered is told of each request that was carried out, by several goroutines at a time: its operation, "ok", the code of the error or
	// "unanswered" if the client wanted no answer, and the time from when the request was read. nil: nobody is told.
	Answered func(operation, result string, took time.Duration)
	// Log takes what happens to sessions; nil for none of it.
	Log *slog.Logger
}

// acceptPause is how long the server waits after an error that it does not know.
const acceptPause = 100 * time.Millisecond

var errServerClosed = errors.New("the server is closed")

// Server serves a [service.Service] on a Unix socket.
type Server struct {
	svc      *service.Service
	config   ServerConfig
	limits   limits
	listener *seqpacket.Listener

	maxSessions, maxWaits atomic.Int64

	ctx      context.Context // ends with the server
	cancel   context.CancelCauseFunc
	accepted sync.WaitGroup
	done     chan struct{}

	mu        sync.Mutex
	conns     map[*serverConn]struct{} // those that count as sessions
	sessions  map[uint64]*serverConn   // of these, those that have said hello, by the id of the session
	lingering int                      // ended sessions for whose processes something is held: they count too
	outside   int                      // connections of peers that may not have a session
	idle      *time.Timer              // runs while nobody is connected
	unused    chan struct{}

	waits atomic.Int64 // requests that wait
}

// Listen serves svc on the socket at path until Close. A socket file that a dead service left behind is taken over.
//
// Errors: [seqpacket.ErrInUse] where a live service listens, and those of the file system.
func Listen(path string, svc *service.Service, c ServerConfig) (*Server, error) {
	return listen(path, svc, c, defaultLimits)
}

// ListenFile serves svc until Close on a socket that listens already, such as systemd hands to a service that it starts. The socket keeps its
// mode, and its file stays. ListenFile closes file.
//
// Errors: [seqpacket.ErrNotListening].
func ListenFile(file *os.File, svc *service.Service, c ServerConfig) (*Server, error) {
	return begin(svc, c, defaultLimits, func(config seqpacket.ListenConfig) (*seqpacket.Listener, error) {
		return seqpacket.ListenFile(file, config)
	})
}

func listen(path string, svc *service.Service, c ServerConfig, limits limits) (*Server, error) {
	return begin(svc, c, limits, func(config seqpacket.ListenConfig) (*seqpacket.Listener, error) {
		return seqpacket.Listen(path, config)
	})
}

func begin(svc *service.Service, c ServerConfig, limits limits, listen func(seqpacket.ListenConfig) (*seqpacket.Listener, error)) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Server{svc: svc, config: c, limits: limits, ctx: ctx, cancel: cancel, done: make(chan struct{}),
		conns: make(map[*serverConn]struct{}), sessions: make(map[uint64]*serverConn),
		unused: make(chan struct{})}
	err := s.SetLimits(c.MaxSessions, c.MaxWaits)
	if err == nil {
		s.listener, err = listen(seqpacket.ListenConfig{Mode: c.Mode, OnPause: func(err error) { c.Log.Warn("connections have to wait", "error", err) }})
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s.idle = time.AfterFunc(math.MaxInt64, s.lookUnused)
	s.rest()
	go s.accept()
	return s, nil
}

// SetLimits changes how many sessions there may be at a time, and how many requests may wait, as in [ServerConfig]. What is there already stays.
// It makes room for as many file descriptors as the limits of the server and of its service need.
func (s *Server) SetLimits(sessions, waits int) error {
	if sessions == 0 {
		sessions = defaultSessions
	}
	if waits == 0 {
		waits = defaultWaits
	}
	files := sessionFDs * sessions
	room, err := seqpacket.Reserve(files + s.svc.Files())
	if err != nil {
		return err
	}
	if room < files {
		s.config.Log.Warn("too few file descriptors for all sessions: raise the limit (LimitNOFILE= in a unit of systemd, ulimit -n), or lower "+
			"--limit sessions=N", "descriptors", room, "sessions", sessions, "descriptors_each", sessionFDs)
	}
	s.maxSessions.Store(int64(sessions))
	s.maxWaits.Store(int64(waits))
	return nil
}

// Path is where the server listens.
func (s *Server) Path() string { return s.listener.Path() }

// Check says what keeps the server from accepting sessions, nil if nothing does. A server that hangs does not answer.
func (s *Server) Check() error {
	s.mu.Lock() // every session passes it
	defer s.mu.Unlock()
	return context.Cause(s.ctx)
}

func (s *Server) accept() {
	defer close(s.done)
	for {
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil: // of that connection, or of a machine in trouble
			s.config.Log.Error("a connection could not be accepted", "error", err)
			select {
			case <-s.ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		c := s.newConn(conn)
		if !s.admit(c) {
			most := int(s.maxSessions.Load())
			full := &service.LimitError{Limit: "sessions", Max: most, Who: "the service", What: "sessions", Have: most, Advice: "close one"}
			s.svc.Refused(full)
			farewell(conn, full)
			c.cancel(nil)
			closeLogged(s.config.Log, conn)
			continue
		}
		go func() {
			defer s.accepted.Done()
			c.serve()
			s.dismiss(c)
		}()
	}
}

// admit counts a connection as a session, if there is room for one.
func (s *Server) admit(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(len(s.conns)+s.lingering) >= s.maxSessions.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	s.idle.Stop()
	s.accepted.Add(1)
	return true
}

// opened notes that the connection has a session.
func (s *Server) opened(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[c.session.ID()] = c
}

// connOf is the connection of a session; nil: no client has it.
func (s *Server) connOf(session uint64) *serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[session]
}

func (s *Server) dismiss(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget counts a connection no longer. The caller holds mu.
func (s *Server) forget(c *serverConn) {
	if _, counted := s.conns[c]; !counted {
		return
	}
	delete(s.conns, c)
	if c.session != nil {
		delete(s.sessions, c.session.ID())
	}
	if len(s.conns) == 0 {
		s.rest()
	}
}

// rest counts from now on how long nobody is connected.
func (s *Server) rest() {
	if s.config.Unused > 0 {
		s.idle.Reset(s.config.Unused)
	}
}

// lookUnused is called when nobody was connected for long enough, unless somebody has come at this moment.
func (s *Server) lookUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.unused:
	default:
		if len(s.conns) == 0 {
			close(s.unused)
		}
	}
}

// Unused is closed when nobody was connected for as long as the configuration says. Sessions that ended while their process
// lives on do not count as connected. A client that connects after that is still served, until the server is closed.
func (s *Server) Unused() <-chan struct{} { return s.unused }

// lingers counts a session on as an ended one, until reclaimed.
func (s *Server) lingers(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
	s.lingering++
}

func (s *Server) reclaimed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lingering--
}

// turnAway answers the hello of a peer that may not have a session. It takes no session's place.
func (s *Server) turnAway(c *serverConn, peer mempool.Peer) {
	s.dismiss(c)
	s.mu.Lock()
	s.outside++
	full := s.outside > s.limits.denied
	s.mu.Unlock()
	if full {
		c.goodbye(notAllowed(peer))
	} else {
		_ = c.run(peer)
	}
	s.mu.Lock()
	s.outside--
	s.mu.Unlock()
}

// Close says goodbye to every client, ends their sessions and removes the socket. The service lives on.
func (s *Server) Close() error {
	err := s.listener.Close()
	s.cancel(errServerClosed)
	s.idle.Stop()
	<-s.done
	s.accepted.Wait()
	return err
}

func closeLogged(log *slog.Logger, c interface{ Close() error }) {
	if err := c.Close(); err != nil {
		log.Warn("a connection could not be closed", "error", err)
	}
}
