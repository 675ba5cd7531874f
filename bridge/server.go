package bridge

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/mempool"
)

// The server's limits; docs/protocol.md names those that clients can meet.
const (
	helloLimit = 10 * time.Second // from connect to hello
	// sendLimit is how long a client may leave its socket's buffer full before it is cut off.
	sendLimit    = 10 * time.Second
	maxWaiting   = 256  // requests of a session that wait at a time
	maxNotices   = 1024 // notices of a session that wait to be sent
	recallGrace  = 2 * time.Second
	maxWait      = 24 * time.Hour
	defaultConns = 4096
)

// ServerConfig configures a [Server]. Its zero value is useful.
type ServerConfig struct {
	// Mode of the socket file; 0 for 0600. The socket's directory is made 0700 if it does not exist.
	Mode os.FileMode
	// MayConnect says who may have a session, from what the kernel says about the peer; nil for whoever can open the
	// socket. What a session may reach is for the access list of each pool.
	MayConnect func(mempool.Peer) bool
	// MaxSessions is how many there may be at a time; 0 for 4096.
	MaxSessions int
	// Log takes what happens to sessions; nil for none of it.
	Log *slog.Logger
}

// Server serves a [mempool.Service] on a Unix socket.
type Server struct {
	svc      *mempool.Service
	config   ServerConfig
	listener *seqpacket.Listener

	ctx      context.Context // ends with the server
	cancel   context.CancelFunc
	accepted sync.WaitGroup
	done     chan struct{}

	mu    sync.Mutex
	conns map[*serverConn]struct{}
}

// Listen serves svc on the socket at path until Close. A socket file that a dead service left behind is taken over.
//
// Errors: [seqpacket.ErrInUse] where a live service listens, and those of the file system.
func Listen(path string, svc *mempool.Service, c ServerConfig) (*Server, error) {
	l, err := seqpacket.Listen(path, seqpacket.ListenConfig{Mode: c.Mode})
	if err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = defaultConns
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{svc: svc, config: c, listener: l, ctx: ctx, cancel: cancel, done: make(chan struct{}), conns: make(map[*serverConn]struct{})}
	go s.accept()
	return s, nil
}

func (s *Server) accept() {
	defer close(s.done)
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				s.config.Log.Error("the server stopped accepting connections", "error", err)
			}
			return
		}
		c := &serverConn{server: s, conn: conn, notices: make(chan mempool.Notice, maxNotices), waiting: make(map[uint32]context.CancelFunc)}
		s.mu.Lock()
		full := len(s.conns) >= s.config.MaxSessions
		if !full {
			s.conns[c] = struct{}{}
			s.accepted.Add(1)
		}
		s.mu.Unlock()
		if full {
			s.config.Log.Warn("a connection was refused: too many sessions", "limit", s.config.MaxSessions)
			closeLogged(s.config.Log, conn)
			continue
		}
		go func() {
			defer s.accepted.Done()
			c.serve(s.ctx)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

// Close says goodbye to every client, ends their sessions and removes the socket. The service lives on.
func (s *Server) Close() error {
	err := s.listener.Close()
	<-s.done
	s.cancel()
	s.accepted.Wait()
	return err
}

func closeLogged(log *slog.Logger, c interface{ Close() error }) {
	if err := c.Close(); err != nil {
		log.Warn("a connection could not be closed", "error", err)
	}
}
