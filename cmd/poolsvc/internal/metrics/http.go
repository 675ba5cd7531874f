package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
)

// ErrRemote is the error for an address that other machines can reach.
var ErrRemote = errors.New("other machines can reach this address")

// patience is how long the service may take to answer a health check.
const patience = 5 * time.Second

// Config configures a [Server].
type Config struct {
	// Address is HOST:PORT, or unix:PATH for a socket that only the user of this process may open.
	Address string
	// If AllowRemote is true, Address may be an address that other machines can reach.
	AllowRemote bool
	// If Profile is true, the server also serves /debug/pprof/.
	Profile bool
	// Ready is the function that the server calls for a request of /readyz. It returns nil if the service answers clients.
	Ready func(context.Context) error
	// If OnLost is not nil, the server calls OnLost when the file of its socket is lost: see [seqpacket.ListenConfig].
	OnLost func(lost, failed error)
	// Page is the web page that the server also serves. If Page is nil, the server serves no web page.
	Page Page
	Log  *slog.Logger
}

// Page is a web page that people open in a browser.
type Page interface {
	// Register adds the handlers of the page.
	Register(*http.ServeMux)
	// Close ends the answers that the page is still sending.
	Close()
}

// Server serves /metrics, /healthz, /readyz and, if there is one, a web page. It answers only GET and HEAD requests.
type Server struct {
	http     *http.Server
	listener net.Listener
	done     chan struct{}
}

// Serve starts a server that listens at the address in c. The server calls the function `healthy` for each request of /healthz. The
// function returns nil if the service is healthy.
//
// Errors: [ErrRemote]; the error of the system if the address is in use.
func Serve(c Config, from prometheus.Gatherer, healthy func(context.Context) error) (*Server, error) {
	s, err := newServer(c, from, healthy)
	if err == nil {
		go s.run(c.Log)
	}
	return s, err
}

// newServer makes a server that listens at the address in c. The server does not accept connections before a call of its method run.
func newServer(c Config, from prometheus.Gatherer, healthy func(context.Context) error) (*Server, error) {
	l, err := listen(c)
	if err != nil {
		return nil, err
	}
	listener := newVisitors(l)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	said := func(asked func(context.Context) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), patience)
			defer cancel()
			if err := asked(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux.HandleFunc("GET /healthz", said(healthy))
	mux.HandleFunc("GET /readyz", said(c.Ready))
	if c.Profile {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	if c.Page != nil {
		c.Page.Register(mux)
	}
	s := &Server{listener: listener, done: make(chan struct{}), http: &http.Server{
		Handler: guard(mux, c, listener.Addr()), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute,
		IdleTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	}}
	watch(s.http)
	if c.Page != nil {
		s.http.RegisterOnShutdown(c.Page.Close)
	}
	return s, nil
}

// run serves until the server is closed.
func (s *Server) run(log *slog.Logger) {
	defer close(s.done)
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error("metrics are not served any more", "error", err)
	}
}

// Addr returns the address at which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close closes the server. Answers that the server is still sending have one second to end.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.done
	return err
}

func listen(c Config) (net.Listener, error) {
	if path, ok := strings.CutPrefix(c.Address, "unix:"); ok {
		return listenUnix(path, c.OnLost)
	}
	if err := CheckAddress(c.Address, c.AllowRemote); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("--http %s: %w", c.Address, err)
	}
	return l, nil
}

// CheckAddress returns an error if the form of the address is wrong or if [Serve] would refuse the address. It does not try to listen.
//
// Errors: [ErrRemote].
func CheckAddress(address string, allowRemote bool) error {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if path == "" {
			return fmt.Errorf("%q: expected a path, such as unix:/run/poolbridge/http.sock", address)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q: expected HOST:PORT, such as 127.0.0.1:9377, or unix:PATH: %w", address, err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: expected a port from 0 to 65535 behind the colon, not %q", address, port)
	}
	if !allowRemote && !loopback(host) {
		return fmt.Errorf("%s: %w, and metrics name pools and channels: name a loopback address, or add --http-allow-remote (http.allow-remote)", address, ErrRemote)
	}
	return nil
}

// listenUnix listens on a socket that only the user of this process may open. It replaces an old socket of this user on which no process
// listens, and no other file. If the socket's file is lost, the listener makes the socket again.
func listenUnix(path string, onLost func(lost, failed error)) (net.Listener, error) {
	l := &unixListener{path: path, mender: seqpacket.Mender{OnLost: onLost}}
	if err := l.listen(); err != nil {
		return nil, fmt.Errorf("--http unix:%s: %w", path, err)
	}
	return l, nil
}

func bindUnix(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("a file of user %d is there: remove it, or choose another path", info.Sys().(*syscall.Stat_t).Uid)
	}
	switch err := seqpacket.TakeOver(path); {
	case errors.Is(err, seqpacket.ErrNotSocket):
		return nil, errors.New("the file there is not a socket: remove it, or choose another path")
	case errors.Is(err, seqpacket.ErrInUse): // not wrapped: poolsvc has an exit status for ErrInUse of the other socket
		return nil, errors.New("another process listens there")
	case err != nil:
		return nil, err
	}
	private := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { // bind gives the file the permissions of the socket
		var changed error
		err := raw.Control(func(fd uintptr) { changed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, changed)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	socket := l.(*net.UnixListener)
	socket.SetUnlinkOnClose(false)
	return socket, nil
}

// unixListener listens at a path. Its Close removes the socket's file, unless another file is at the path.
type unixListener struct {
	path   string
	mender seqpacket.Mender

	mu     sync.Mutex
	socket *net.UnixListener
	file   seqpacket.SocketFile
	closed bool
}

// listen makes the socket. It closes the socket that the listener had before.
func (l *unixListener) listen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	socket, err := bindUnix(l.path)
	if err != nil {
		return err
	}
	file, err := seqpacket.SocketFileAt(l.path)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	if l.socket != nil {
		_ = l.socket.Close() // close(2) of a socket does not fail
	}
	l.socket, l.file = socket, file
	return nil
}

// Accept waits for the next connection. While it waits, it looks whether the socket's file is at its path.
func (l *unixListener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		socket, file := l.socket, l.file
		l.mu.Unlock()
		_ = socket.SetDeadline(time.Now().Add(seqpacket.MendEvery)) // an error means that the socket is closed, and then Accept fails too
		conn, err := socket.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		l.mender.Mend(file.Check(), true, l.listen)
	}
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return errors.Join(l.file.Remove(), l.socket.Close())
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// guard refuses requests that name another host, because a page of another site can make a browser send such requests.
func guard(next http.Handler, c Config, at net.Addr) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if at.Network() != "unix" && !c.AllowRemote && !loopback(strings.ToLower(strings.Trim(host, "[]"))) {
			http.Error(w, "this server is for "+at.String(), http.StatusForbidden)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
