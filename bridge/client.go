package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Client is a session with a service in another process. Several goroutines may call its methods.
type Client struct {
	conn    *seqpacket.Conn
	epoch   mempool.Epoch
	session uint64
	device  string
	tracer  Tracer
	traces  sync.Map      // for a tracer: maps each *Lease to the context in which the lease was made
	ordered bool          // the session has timelines
	streams bool          // the session has channels
	checks  bool          // each Release tells the service how the client describes the lease, so that the service compares
	done    chan struct{} // closed when the connection is gone; err then says why
	err     error

	tasks tasks
	order struct {
		pages func(context.Context, uint64) (*mempool.Page, error)
		clock func(context.Context) (*mempool.Clock, error)
	}

	// working ends when the client is closed or the connection is gone. linked ends only when the connection is gone. The causes of these two
	// contexts say why they ended.
	working, linked context.Context
	stop, unlink    context.CancelCauseFunc

	longestWait, deadlineGrace time.Duration // the constants of the same names; tests use other values

	sending sync.Mutex // held while a packet is sent

	mu      sync.Mutex
	lastQ   uint32
	calls   map[uint32]*call // nil once the connection is gone
	busy    int              // number of calls, and of callers that turn a reply into a lease
	quiet   chan struct{}    // closed when the client is closing and busy is 0
	pools   map[uint64]*Pool
	blocks  map[uint64]*block
	leases  leases
	closing bool

	shared memberships
	// SessionStats reports these counts.
	allocated, allocatedBytes atomic.Uint64
	memoryWaits               waits

	timelines  timelines
	background sync.WaitGroup // goroutines that Close waits for
}

var errClientClosed = situation.Of(ErrClosed, "the client was closed")

// Dial opens a session with the service that listens at path. If the service has not started yet, Dial waits for the service until ctx
// ends. Dial uses the zero [Dialer].
func Dial(ctx context.Context, path string) (*Client, error) { return Dialer{}.Dial(ctx, path) }

// TryDial is like [Dial], but does not wait for the service to start.
func TryDial(ctx context.Context, path string) (*Client, error) { return Dialer{}.TryDial(ctx, path) }

// Dialer has the options of a client. The zero Dialer has useful defaults.
type Dialer struct {
	// Device is the ordinal or the UUID of the GPU on which the client works. If a pool's memory is on another GPU, the client lets Device
	// access this memory. If Device is empty, the client works on the GPU that has the memory. The client opens memory of kind legacy for only
	// one GPU: kernels on other GPUs must not use the address of this memory.
	Device string
	// Tracer gets the client's operations. If Tracer is nil, the client traces nothing.
	Tracer Tracer
}

// Dial opens a session with the service that listens at path. If the service has not started yet, Dial waits for the service.
//
// Errors: [ErrNotRunning] at the deadline: the error names the path and says how to start the service; [ErrDenied], [ErrVersion].
func (d Dialer) Dial(ctx context.Context, path string) (*Client, error) {
	return d.dial(ctx, waiting, path)
}

// TryDial is like [Dialer.Dial], but does not wait for the service to start.
//
// Errors: [ErrNotRunning]: the error names the path and says how to start the service; [ErrDenied], [ErrVersion].
func (d Dialer) TryDial(ctx context.Context, path string) (*Client, error) {
	return d.dial(ctx, once, path)
}

func (d Dialer) dial(ctx context.Context, try attempt, path string) (*Client, error) {
	conn, err := connect(ctx, try, path)
	if err != nil {
		return nil, err
	}
	if err := checkServer(conn, path); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c := &Client{conn: conn, device: d.Device, tracer: d.Tracer, done: make(chan struct{}), quiet: make(chan struct{}),
		tasks: tasks{wake: make(chan struct{}, 1)}, calls: make(map[uint32]*call), pools: make(map[uint64]*Pool), blocks: make(map[uint64]*block),
		longestWait: longestWait, deadlineGrace: deadlineGrace}
	_, c.checks = os.LookupEnv("POOLBRIDGE_CHECK_LEASES")
	c.order.pages, c.order.clock = c.page, c.Clock
	c.working, c.stop = context.WithCancelCause(context.Background())
	c.linked, c.unlink = context.WithCancelCause(context.Background())
	go c.receive()
	go c.tasks.run(c.done)
	var reply wire.HelloReply
	err = c.call(ctx, &wire.Hello{Versions: []uint64{wire.Version}, Name: filepath.Base(os.Args[0]),
		Features: []string{wire.FeatureTimelines, wire.FeatureChannels}}, &call{into: &reply})
	if err == nil && reply.Version != wire.Version {
		err = situation.Of(ErrVersion, "the service chose version %d, which this client did not offer", reply.Version)
	}
	if errors.Is(err, ErrVersion) {
		err = fmt.Errorf("%w; this client is of poolbridge %s and speaks version %d: %s", err, program.Version(), wire.Version, useOneVersion)
	}
	if err != nil {
		err = errors.Join(err, conn.Close())
		<-c.done
		return nil, err
	}
	c.epoch, c.session = mempool.Epoch(reply.Epoch), reply.Session
	c.ordered, c.streams = slices.Contains(reply.Features, wire.FeatureTimelines), slices.Contains(reply.Features, wire.FeatureChannels)
	return c, nil
}

// connect connects to the service. If the service does not listen yet, connect waits, unless `try` is `once`.
func connect(ctx context.Context, try attempt, path string) (*seqpacket.Conn, error) {
	var missing error
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := seqpacket.Dial(ctx, path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, fs.ErrPermission):
			return nil, situation.Of(ErrDenied, "user %[1]d may not open the socket %[2]s: %[3]v; start the service with --mode 0660, for a group, or "+
				"--mode 0666, for all, its socket in a folder that this user may enter, and make pools with uid=%[1]d or gid= for it", os.Getuid(), path, err)
		case ctx.Err() != nil && missing != nil:
			return nil, late(ctx, missing)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("connect to %s: %w", path, situation.Ended(ctx))
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
			return nil, err
		}
		missing = fmt.Errorf("%w: nothing listens on %s; start it with `poolsvc serve`, or set POOLBRIDGE_SOCKET (%w)",
			ErrNotRunning, path, err)
		if try {
			return nil, missing
		}
		select {
		case <-ctx.Done():
			return nil, late(ctx, missing)
		case <-time.After(pause): // before the socket exists, there is nothing to wait on, so try again after a pause
		}
	}
}

// Session returns the session's id. No other session of the same run of the service has this id.
func (c *Client) Session() uint64 { return c.session }

// Epoch returns the id of this run of the service. If the service is started again, the new run has another id.
func (c *Client) Epoch() Epoch { return c.epoch }

// Done returns a channel that is closed when the connection is gone. At that time all leases of the client have ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// packets has the buffers for received packets. A decoded message does not use the buffer of its packet, so the buffer is free after
// decoding.
var packets = seqpacket.NewBuffers(wire.MaxPacket)

// receive reads packets of the service until the connection ends.
func (c *Client) receive() {
	var goodbye error
	for {
		packet, fds, err := c.conn.RecvInto(packets)
		if err == nil {
			err = c.take(packet.Data, fds, &goodbye)
			packet.Free()
			err = errors.Join(err, fds.Close()) // closes the files that no handler took
		}
		if err != nil {
			c.end(err, goodbye)
			return
		}
	}
}

// take handles one packet of the service.
func (c *Client) take(packet []byte, fds *seqpacket.FDs, goodbye *error) error {
	h, err := wire.DecodeHeader(packet)
	if err != nil {
		return err
	}
	if h.Q != 0 {
		pending := c.forget(h.Q)
		if pending == nil {
			return situation.Of(ErrProtocol, "a reply to request %d, but there is no such request", h.Q)
		}
		defer c.leave() // leave comes after the undo of the reply has become a task
		return c.answered(pending, fds, h.DecodeReply(pending.into))
	}
	n, err := h.DecodeNotice()
	switch n := n.(type) {
	case *wire.Recall:
		c.tasks.add(func() { c.recall(n.Blocks) })
	case *wire.Goodbye:
		*goodbye = remoteError("goodbye", &n.Reason)
	case *wire.Failed:
		c.failed(n.Buffers)
	case *wire.Forget:
		c.tasks.add(func() { c.timelines.forget(n.Timelines) })
	case *wire.MemberCame:
		c.shared.memberCame(n, fds)
	case *wire.Wanted:
		c.tasks.add(func() { c.wanted(n.Pool) })
	}
	if errors.Is(err, wire.CodeUnsupported) {
		return nil // only a later version has this notice; this client can ignore it
	}
	return err
}

// end makes every waiting call fail. The caller calls end when the connection is gone or the service broke the protocol.
func (c *Client) end(err, goodbye error) {
	err = fmt.Errorf("%w: %w; the session's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "+
		"are gone; what is mapped can still be read: dial again for a new session", ErrDisconnected, cmp.Or(goodbye, err))
	_ = c.conn.Close()
	c.mu.Lock()
	if c.closing {
		err = errClientClosed
	}
	calls := c.calls
	c.calls, c.err = nil, err
	for _, pending := range calls {
		if !pending.abandoned {
			pending.done <- err
		}
	}
	c.mu.Unlock()
	c.stop(err)
	c.unlink(err)
	close(c.done)
	c.requeueFrames()
}

// idle subtracts 1 from c.busy, the number of callers whose work Close must wait for. If the number is then 0, idle tells Close. The caller
// of idle holds c.mu.
func (c *Client) idle() {
	if c.busy--; c.busy == 0 && c.closing {
		c.quieten()
	}
}

// quieten closes the channel c.quiet. This tells Close that no caller is busy. Close itself makes requests after c.quiet is closed. When
// such a request ends, quieten is called again, and does nothing. The caller holds c.mu.
func (c *Client) quieten() {
	select {
	case <-c.quiet:
	default:
		close(c.quiet)
	}
}

const (
	// closeGrace is how long Close waits for a service that does not answer.
	closeGrace = 2 * time.Second
	// workLimit is how long a call without a context waits for this client's own work.
	workLimit = 30 * time.Second
)

// Close makes waiting calls fail, ends all leases (the content of write leases counts as incomplete), unmaps all memory and ends the
// session. When Close returns, the service has ended the leases and removed the names that the session published without Keep, unless the
// service does not answer. A second call of Close only waits until the connection is gone.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	if first && c.busy == 0 {
		c.quieten()
	}
	leases := slices.Collect(c.leases.all())
	c.mu.Unlock()
	if !first {
		<-c.done
		return nil
	}
	c.abandonAll(errClientClosed)
	c.stop(errClientClosed)
	leases = append(leases, c.shared.loans()...)
	var err error
	for _, l := range leases {
		ended := l.Release(true)
		if !errors.Is(ended, ErrReleased) && !errors.Is(ended, errClientClosed) && !errors.Is(ended, ErrDisconnected) {
			err = errors.Join(err, ended) // not ErrReleased, which means that another goroutine has just ended the lease
		}
	}
	c.awaitCancelled()
	c.leaveShared()
	working := c.timelines.quiesce()
	if working == nil {
		err = errors.Join(err, c.unmapAll())
	}
	err = errors.Join(err, working, c.hangUp())
	c.background.Wait()
	err = errors.Join(err, c.shared.close())
	if working == nil {
		err = errors.Join(err, c.timelines.close())
	}
	return err
}

// hangUp ends the connection. It waits until the service has ended the session and closed the service's end of the connection.
func (c *Client) hangUp() error {
	c.bye()
	if c.conn.CloseWrite() == nil {
		select {
		case <-c.done:
		case <-time.After(closeGrace):
		}
	}
	err := c.conn.Close()
	<-c.done
	return err
}

// awaitCancelled waits until the service has answered the cancelled calls and the client has released the leases that the service granted
// to these calls. If the session ended while it still had one of these leases, the service could use the memory of this lease again only
// after the end of this process.
func (c *Client) awaitCancelled() {
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	for _, wait := range []func() <-chan struct{}{
		func() <-chan struct{} { return c.quiet },
		c.tasksDone,
	} {
		select {
		case <-wait():
		case <-c.done:
			return
		case <-grace.C:
			return
		}
	}
}

// tasksDone returns a channel that is closed when all present tasks have run. Tasks run in order.
func (c *Client) tasksDone() <-chan struct{} {
	done := make(chan struct{})
	c.tasks.add(func() { close(done) })
	return done
}

// Stats returns the service's counts, and the memory use of each pool that this client may use or destroy. The pools are in the order of
// their ids.
func (c *Client) Stats(ctx context.Context) (ServiceStats, error) {
	var reply wire.StatsReply
	if err := c.call(ctx, &wire.StatsRequest{}, &call{into: &reply}); err != nil {
		return mempool.ServiceStats{}, err // do not read reply: the receiving goroutine may still write it
	}
	return convert.ServiceStats(reply.Stats), nil
}

// Unpublish removes a name. The buffer stays while a lease on the buffer exists.
func (c *Client) Unpublish(ctx context.Context, name string) error {
	return c.call(ctx, &wire.Unpublish{Name: name}, &call{into: &wire.EmptyReply{}})
}
