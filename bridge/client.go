package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/internal/stream"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Client is a session with a service in another process. Several goroutines may call its methods.
type Client struct {
	tracing
	session *session.Session
	streams *stream.Streams
	pools   sync.Map // maps each *session.Pool to its *Pool
	arenas  sync.Map // of *Arena, until they are closed
}

// String describes the client for people.
func (c *Client) String() string { return fmt.Sprintf("client, session %d", c.Session()) }

// Dial opens a session with the service that listens at path. It does not wait for a service that has not started: see [Dialer.Wait]. Dial uses
// the zero [Dialer].
func Dial(ctx context.Context, path string) (*Client, error) { return Dialer{}.Dial(ctx, path) }

// Dialer has the options of a client. The zero Dialer has useful defaults.
type Dialer struct {
	// Device is the ordinal or the UUID of the GPU on which the client works. If a pool's memory is on another GPU, the client lets Device
	// access this memory. If Device is empty, the client works on the GPU that has the memory. The client opens memory of kind legacy for only
	// one GPU: kernels on other GPUs must not use the address of this memory.
	Device string
	// Tracer gets the client's operations. If Tracer is nil, the client traces nothing.
	Tracer Tracer
	// Wait says that Dial waits for a service that has not started yet.
	Wait bool
	// Watch says that the client only asks for statistics, lists and events: the service refuses other requests, and if it ends when no client
	// uses it, it does not wait for such a client.
	Watch bool
}

// Dial opens a session with the service that listens at path.
//
// Errors: [ErrNotRunning], with Wait at the deadline: the error names the path and says how to start the service; [ErrDenied], [ErrVersion].
func (d Dialer) Dial(ctx context.Context, path string) (c *Client, err error) {
	for range dying {
		if c, err = d.dial(ctx, path); !errors.Is(err, io.EOF) && !errors.Is(err, seqpacket.ErrPeerClosed) {
			break
		}
	}
	return c, err
}

// dying is to how many services a client connects that die before they answer hello: the guard of a service starts the next one.
const dying = 5

func (d Dialer) dial(ctx context.Context, path string) (*Client, error) {
	try := session.Once
	if d.Wait {
		try = session.Waiting
	}
	conn, err := connect(ctx, try, path)
	if err != nil {
		return nil, err
	}
	if err := checkServer(conn, path); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := session.New(conn)
	c := &Client{tracing: tracing{tracer: d.Tracer, blocks: &s.Blocks}, session: s, streams: stream.New(s)}
	s.Wanted = func(pool uint64) {
		c.streams.Wanted(pool)
		c.arenas.Range(func(a, _ any) bool {
			a.(*Arena).giveBack(pool)
			return true
		})
	}
	if whole, err := filepath.Abs(path); err == nil && !filepath.IsAbs(path) && len(whole) < len(unix.RawSockaddrUnix{}.Path) {
		path = whole // the program may change its folder
	}
	s.Redial = func(ctx context.Context) (*seqpacket.Conn, error) {
		conn, err := seqpacket.Dial(ctx, path)
		if err == nil {
			if err = checkServer(conn, path); err != nil {
				err = errors.Join(err, conn.Close())
			}
		}
		return conn, err
	}
	s.Refused, s.Blocks.Device = remoteError, d.Device
	_, s.Blocks.Checked = os.LookupEnv("POOLBRIDGE_CHECK_LEASES")
	var more []string
	if d.Watch {
		more = append(more, wire.FeatureWatch)
	}
	err = s.Hello(ctx, filepath.Base(os.Args[0]), more...)
	if errors.Is(err, ErrVersion) {
		err = fmt.Errorf("%w; this client is of poolbridge %s and speaks version %d: %s", err, program.Version(), wire.Version, useOneVersion)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect connects to the service. If the service does not listen yet, connect waits, unless `try` is session.Once.
func connect(ctx context.Context, try session.Attempt, path string) (*seqpacket.Conn, error) {
	var missing error
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := seqpacket.Dial(ctx, path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, fs.ErrPermission):
			return nil, typed.Errorf(ErrDenied, "user %[1]d may not open the socket %[2]s: %[3]v; start the service with --mode 0660, for a group, or "+
				"--mode 0666, for all, its socket in a folder that this user may enter, and make pools with uid=%[1]d or gid= for it", os.Getuid(), path, err)
		case ctx.Err() != nil && missing != nil:
			return nil, session.Late(ctx, missing)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("connect to %s: %w", path, typed.Ended(ctx))
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
			return nil, err
		}
		why, _ := errors.AsType[unix.Errno](err)
		missing = fmt.Errorf("%w: nothing listens on %s (%w); start it with `poolsvc serve`, or set POOLBRIDGE_SOCKET", ErrNotRunning, path, why)
		if try == session.Once {
			return nil, missing
		}
		select {
		case <-ctx.Done():
			return nil, session.Late(ctx, missing)
		case <-time.After(pause): // before the socket exists, there is nothing to wait on, so try again after a pause
		}
	}
}

// Session returns the session's id. No other session of the same run of the service has this id.
func (c *Client) Session() uint64 { return c.session.ID }

// Epoch returns the id of this run of the service. If the service is started again, the new run has another id.
func (c *Client) Epoch() Epoch { return c.session.Epoch }

// Done returns a channel that is closed when the connection is gone. At that time all leases of the client have ended.
func (c *Client) Done() <-chan struct{} { return c.session.Done() }

// Close makes waiting calls fail, ends all leases (the content of write leases counts as incomplete), unmaps all memory and ends the
// session. When Close returns, the service has ended the leases and removed the names that the session published without Keep, unless the
// service does not answer. A second call of Close only waits until the connection is gone.
func (c *Client) Close() error {
	s := c.session
	if !s.BeginClose() {
		<-c.Done()
		return nil
	}
	var err error
	for _, l := range append(s.Blocks.BeginClose(), c.streams.ClosePublishers()...) {
		ended := c.traceRelease(session.Unasked, l, true)
		if !errors.Is(ended, session.ErrClientClosed) && !errors.Is(ended, ErrDisconnected) {
			err = errors.Join(err, ended)
		}
	}
	s.AwaitCancelled()
	c.streams.Leave()
	working := s.Timelines.Quiesce()
	if working == nil {
		err = errors.Join(err, s.Blocks.Close())
	}
	err = errors.Join(err, working, s.HangUp(), c.streams.Close())
	if working == nil {
		err = errors.Join(err, s.Timelines.Close())
	}
	return err
}

// Clock returns the clock of the client's own timeline. A program uses this clock to make fences for its own work on the memory.
//
// Errors: [ErrUnavailable] if the service has no timelines.
func (c *Client) Clock(ctx context.Context) (*Clock, error) { return c.session.Timelines.Clock(ctx) }

// Stats returns the service's counts, and the memory use of each pool that this client may use or destroy. The pools are in the order of
// their ids.
func (c *Client) Stats(ctx context.Context) (ServiceStats, error) {
	var reply wire.StatsReply
	if err := c.session.Call(ctx, &wire.StatsRequest{}, &reply); err != nil {
		return mempool.ServiceStats{}, err // do not read reply: the receiving goroutine may still write it
	}
	return convert.ServiceStats(reply.Stats), nil
}

// Unpublish removes a name. The buffer stays while a lease on the buffer exists.
func (c *Client) Unpublish(ctx context.Context, name string) error {
	return c.session.Call(ctx, &wire.Unpublish{Name: name}, &wire.EmptyReply{})
}
