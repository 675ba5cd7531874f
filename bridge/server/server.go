package server

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
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// Config configures a [Server]. The zero Config has useful defaults.
type Config struct {
	// Mode is the mode of the socket file; 0 means 0600. If the socket's directory does not exist, Listen makes the directory with mode 0700.
	Mode os.FileMode
	// MayConnect reports whether a peer may have a session. The kernel tells the server the peer's user and process. If MayConnect is nil,
	// every process that can open the socket may have a session. The access list of each pool decides what a session may use.
	MayConnect func(mempool.Peer) bool
	// MaxSessions is how many sessions the server may have at a time; 0 means 4096. A session that has ended still counts while its process
	// lives and may use memory of the session. Of many sessions, some are only for the user that the service runs as, and root: see reserve.
	MaxSessions int
	// MaxWaits is how many requests may wait at a time, in all sessions together; 0 means 65,536.
	MaxWaits int
	// Unused is a time: if no client was connected for this time, watchers aside, the server closes the channel of [Server.Unused]. The time
	// begins when the server starts, and again when a client leaves. It lasts at least as long as clients of a predecessor may come back. If
	// Unused is 0, the server never closes the channel.
	Unused time.Duration
	// The server calls Answered after each request that the server has carried out, from several goroutines at a time. `operation` is the name
	// of the request. `result` is "ok", the code of the error, or "unanswered" if the client wanted no answer. `took` is the time since the
	// server read the request. If Answered is nil, the server calls nothing.
	Answered func(operation, result string, took time.Duration)
	// Made hears of each socket that the server listens on: see [seqpacket.ListenConfig]. If Made is nil, the server calls nothing.
	Made func(socket *os.File) error
	// Limits are the limits for each client; nil means [DefaultLimits].
	Limits *ClientLimits
	// Log gets the server's log; nil means no log.
	Log *slog.Logger
}

// acceptPause is how long the server waits after an unknown error before it accepts connections again.
const acceptPause = 100 * time.Millisecond

var errServerClosed = errors.New("the server is closed")

// Server serves a [service.Service] on a Unix socket.
type Server struct {
	svc        *service.Service
	config     Config
	limits     ClientLimits
	listener   *seqpacket.Listener
	complaints complaints

	maxSessions, maxWaits atomic.Int64

	ctx      context.Context // ends when the server is closed
	cancel   context.CancelCauseFunc
	accepted sync.WaitGroup
	done     chan struct{}

	mu        sync.Mutex
	conns     map[*connection]struct{} // connections that count as sessions
	watchers  int                      // those of conns that have the feature "watch"
	sessions  map[uint64]*connection   // connections that have a session, by the session's id
	users     map[uint32]int           // how many sessions each user has, including lingering ones
	lingering int                      // ended sessions whose processes may still use memory; they still count as sessions
	returning map[int32]int            // connections without a session yet of processes that may take sessions up again, by process
	outside   int                      // connections of peers that may not have a session
	left      time.Time                // when the server started, or the last client left that was no watcher
	idle      *time.Timer              // runs while no client is connected that is no watcher
	unused    chan struct{}

	waits atomic.Int64 // number of requests that wait
	lists lists
}

// Listen starts a server for svc on a new socket at path, and returns at once. The server runs until Close. If a dead service left a socket
// file behind, Listen replaces the file.
//
// Errors: [seqpacket.ErrInUse] if a live service listens at path, [seqpacket.ErrNotSocket], [seqpacket.ErrUnsafeDir], those of the system.
func Listen(path string, svc *service.Service, c Config) (*Server, error) {
	return begin(svc, c, func(config seqpacket.ListenConfig) (*seqpacket.Listener, error) {
		return seqpacket.Listen(path, config)
	})
}

// ListenFile starts a server for svc on a socket that listens already, for example one that systemd passes to a service, and returns at once.
// The socket keeps its mode, and Close does not remove the socket's file. ListenFile always closes `file`.
//
// Errors: [seqpacket.ErrNotListening], and those of the system, such as no free descriptors.
func ListenFile(file *os.File, svc *service.Service, c Config) (*Server, error) {
	defer file.Close() // seqpacket has closed it, unless begin failed before
	return begin(svc, c, func(config seqpacket.ListenConfig) (*seqpacket.Listener, error) {
		return seqpacket.ListenFile(file, config)
	})
}

// ListenAgain is like [ListenFile] for a socket that [Listen] made in a process that has ended: Close removes the socket's file.
func ListenAgain(file *os.File, svc *service.Service, c Config) (*Server, error) {
	defer file.Close()
	return begin(svc, c, func(config seqpacket.ListenConfig) (*seqpacket.Listener, error) {
		return seqpacket.ListenAgain(file, config)
	})
}

func begin(svc *service.Service, c Config, listen func(seqpacket.ListenConfig) (*seqpacket.Listener, error)) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	limits := DefaultLimits()
	if c.Limits != nil {
		limits = *c.Limits
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Server{svc: svc, config: c, limits: limits, ctx: ctx, cancel: cancel, done: make(chan struct{}),
		conns: make(map[*connection]struct{}), sessions: make(map[uint64]*connection), users: make(map[uint32]int), returning: make(map[int32]int),
		left: time.Now(), unused: make(chan struct{}), complaints: complaints{log: c.Log}}
	err := s.SetLimits(c.MaxSessions, c.MaxWaits)
	if err == nil {
		s.listener, err = listen(seqpacket.ListenConfig{Mode: c.Mode, OnLost: s.noteLost, Made: c.Made,
			OnPause: func(err error) { s.complaints.warn(0, "connections have to wait", "error", err) }})
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s.idle = time.AfterFunc(math.MaxInt64, s.noteUnused)
	s.startIdleLocked()
	go s.accept()
	return s, nil
}

// SetLimits changes MaxSessions and MaxWaits of [Config]. SetLimits ends no existing session or request. SetLimits also makes the process's
// table of file descriptors large enough for the server and its service with these limits, but not larger than the process's own limit of
// descriptors.
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

// Path returns the path of the server's socket.
func (s *Server) Path() string { return s.listener.Path() }

// Check returns an error that says why the server cannot accept sessions, or nil if the server can accept them. If the server hangs, Check
// does not return.
func (s *Server) Check() error {
	s.mu.Lock() // every session locks mu, so Check finds out whether mu can be locked
	defer s.mu.Unlock()
	return context.Cause(s.ctx)
}

// Reachable returns nil if the file of the server's socket is at its path, so that clients can connect.
func (s *Server) Reachable() error { return s.listener.Check() }

// noteLost notes that the file of the server's socket was removed or replaced, and whether the server has made it again.
func (s *Server) noteLost(lost, failed error) {
	s.svc.Impaired(seqpacket.LossText(lost, failed))
}

func (s *Server) accept() {
	defer close(s.done)
	for {
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil: // one connection failed, or the machine has no memory or no descriptors left
			s.config.Log.Error("a connection could not be accepted", "error", err)
			select {
			case <-s.ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		c := s.newConn(conn)
		if full := s.admit(c); full != nil {
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

// admit counts a connection as a session. It returns an error if the user or the server has as many sessions as it may have. If the process may
// take up sessions of a predecessor, only the hello says whether the connection is of a new session: then admit counts the connection as
// returning.
func (s *Server) admit(c *connection) error {
	if _, _, absent := s.svc.Absent(c.peer); absent > 0 {
		s.mu.Lock()
		if c.returns = s.returning[c.peer.PID] < absent+s.limits.Denied; c.returns {
			s.returning[c.peer.PID]++
			s.accepted.Add(1)
		}
		s.mu.Unlock()
	}
	if c.returns {
		return nil
	}
	err := s.count(c, false)
	if err == nil {
		s.accepted.Add(1)
	}
	return err
}

// count counts a connection as a session. It returns an error if the user or the server has as many sessions as it may have, unless the
// session is `resumed`: it has counted before.
func (s *Server) count(c *connection, resumed bool) error {
	share := s.svc.MaxSessions(c.peer)
	absent, ofUser, _ := s.svc.Absent(c.peer)
	s.mu.Lock()
	defer s.mu.Unlock()
	have, most := len(s.conns)+s.lingering+absent, int(s.maxSessions.Load())
	if !resumed && have >= most-s.reserve(c.peer, most) {
		return &service.LimitError{Limit: "sessions", Max: most, Who: "the service", What: "sessions", Have: have, Advice: "close one"}
	}
	if have = s.users[c.peer.UID] + ofUser; !resumed && have >= share {
		return &service.LimitError{Limit: "user-sessions", Max: share, Who: c.peer.String(), What: "sessions", Have: have, Advice: "close one"}
	}
	s.conns[c] = struct{}{}
	s.countLocked(c, +1)
	s.idle.Stop()
	return nil
}

// returned ends the time in which a connection counts as returning. It reports whether the connection counted so.
func (s *Server) returned(c *connection) bool {
	if !c.returns {
		return false
	}
	c.returns = false
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.returning[c.peer.PID]--; s.returning[c.peer.PID] == 0 {
		delete(s.returning, c.peer.PID)
	}
	return true
}

// reserve returns how many of `most` sessions or waiting requests the peer may not use: one in 256, and at least one of several, is only for
// the user that the service runs as, and root, so that these users can list and end sessions when others have taken the rest.
func (s *Server) reserve(peer mempool.Peer, most int) int {
	if s.svc.Owns(peer.UID) || most < 2 {
		return 0
	}
	return (most + 255) / 256
}

// countLocked adds n (+1 or −1) to the sessions of the connection's user.
func (s *Server) countLocked(c *connection, n int) {
	if s.users[c.peer.UID] += n; s.users[c.peer.UID] == 0 {
		delete(s.users, c.peer.UID)
	}
}

// opened records that the connection has a session and its features now.
func (s *Server) opened(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[c.session.ID()] = c
	if c.features[wire.FeatureWatch] {
		s.watchers++
		s.startIdleLocked()
	}
}

// connOf returns the connection of a session, or nil if no client has the session.
func (s *Server) connOf(session uint64) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[session]
}

// dismiss stops counting a connection as a session.
func (s *Server) dismiss(c *connection) {
	s.returned(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismissLocked(c)
}

func (s *Server) dismissLocked(c *connection) {
	if _, counted := s.conns[c]; !counted {
		return
	}
	delete(s.conns, c)
	s.countLocked(c, -1)
	if c.session != nil {
		delete(s.sessions, c.session.ID())
	}
	if c.session != nil && c.features[wire.FeatureWatch] {
		s.watchers--
	} else {
		s.left = time.Now()
	}
	s.startIdleLocked()
}

// startIdleLocked starts the timer of [Config.Unused] if no client is connected that is no watcher. The timer does not fire while clients of a
// predecessor may come back. The caller holds mu, or no other goroutine can access s yet.
func (s *Server) startIdleLocked() {
	if s.config.Unused > 0 && len(s.conns) == s.watchers {
		s.idle.Reset(max(0, time.Until(s.left.Add(s.config.Unused)), time.Until(s.svc.ResumeBy())))
	}
}

// noteUnused runs when the timer of [Config.Unused] has fired, and closes s.unused. If a client has connected at the same moment,
// noteUnused does nothing.
func (s *Server) noteUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.unused:
	default:
		if len(s.conns) == s.watchers {
			close(s.unused)
		}
	}
}

// Unused returns a channel that is closed when no client was connected for the time of [Config.Unused]. A session that has ended, or that
// has the feature "watch", does not count as connected, even if its process lives. A client that connects later is still served, until Close.
func (s *Server) Unused() <-chan struct{} { return s.unused }

// lingers records that the session of c has ended, but that the session's process may still use memory. The session counts for the limit
// MaxSessions until the caller calls Server.reclaimed.
func (s *Server) lingers(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismissLocked(c)
	s.lingering++
	s.countLocked(c, +1)
}

// reclaimed records that the process of the lingering session of c is gone, so that the session does not count any more.
func (s *Server) reclaimed(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lingering--
	s.countLocked(c, -1)
}

// turnAway answers the hello of a peer that may not have a session. If the server already reads the hellos of ClientLimits.Denied such
// peers, turnAway sends a goodbye instead. From the beginning of turnAway, the connection does not count as a session any more.
func (s *Server) turnAway(c *connection, peer mempool.Peer) {
	s.dismiss(c)
	s.mu.Lock()
	s.outside++
	full := s.outside > s.limits.Denied
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

// Close sends a goodbye to every client, ends the sessions, and removes the socket's file, unless the server is from ListenFile. It waits until
// all connections are served. Close does not close the service.
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
