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
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// Client is a session with a service in another process. Its methods may be called from several goroutines.
type Client struct {
	conn    *seqpacket.Conn
	epoch   mempool.Epoch
	session uint64
	device  string
	ordered bool          // the session has timelines
	streams bool          // and channels
	done    chan struct{} // closed when the connection is gone; err says why
	err     error

	tasks tasks
	order struct { // of every lease; made once
		pages func(context.Context, uint64) (*mempool.Page, error)
		clock func(context.Context) (*mempool.Clock, error)
	}

	// working ends when the client is closed or the connection is gone, linked only when the connection is: both say why.
	working, linked context.Context
	stop, unlink    context.CancelCauseFunc

	sending sync.Mutex // one packet at a time

	mu      sync.Mutex
	lastQ   uint32
	calls   map[uint32]*call // nil once the connection is gone
	busy    int              // calls, and callers that make a lease of a reply
	quiet   chan struct{}    // closed when the client is closing and not busy
	pools   map[uint64]*Pool
	blocks  map[uint64]*block
	leases  leases
	closing bool

	shared     memberships
	timelines  timelines
	background sync.WaitGroup // unmapping that waits for work to be done
}

var errClientClosed = situation.Of(ErrClosed, "the client was closed")

// Dial opens a session with the service that listens at path, as the zero [Dialer] does.
func Dial(ctx context.Context, path string) (*Client, error) { return Dialer{}.Dial(ctx, path) }

// Dialer says how to be a client. Its zero value is useful.
type Dialer struct {
	// Device is the GPU that the client works on, an ordinal or a UUID, where that is not the one that has the memory:
	// what it opens is made reachable from there. Empty: the memory's own. Memory of kind legacy is opened for this GPU
	// alone: kernels of others must not touch it at its address.
	Device string
}

// Dial opens a session with the service that listens at path. While nothing listens there it tries again until ctx is
// done, if ctx has a deadline.
//
// Errors: [ErrNotRunning], which says where it looked and how to start the service; [ErrDenied], [ErrVersion]; ctx's.
func (d Dialer) Dial(ctx context.Context, path string) (*Client, error) {
	conn, err := dialWait(ctx, path)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, device: d.Device, done: make(chan struct{}), quiet: make(chan struct{}),
		tasks: tasks{wake: make(chan struct{}, 1)}, calls: make(map[uint32]*call), pools: make(map[uint64]*Pool), blocks: make(map[uint64]*block)}
	c.order.pages, c.order.clock = c.page, c.Clock
	c.working, c.stop = context.WithCancelCause(context.Background())
	c.linked, c.unlink = context.WithCancelCause(context.Background())
	go c.receive()
	go c.tasks.run(c.done)
	var reply wire.HelloReply
	err = c.call(ctx, &wire.Hello{Versions: []uint64{wire.Version}, Name: filepath.Base(os.Args[0]),
		Features: []string{featureTimelines, featureChannels}}, &call{into: &reply})
	if err == nil && reply.Version != wire.Version {
		err = situation.Of(ErrVersion, "the service chose version %d, of which there was no mention", reply.Version)
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
	c.ordered, c.streams = slices.Contains(reply.Features, featureTimelines), slices.Contains(reply.Features, featureChannels)
	return c, nil
}

// dialWait connects, and where ctx has a deadline waits for the service to appear.
func dialWait(ctx context.Context, path string) (*seqpacket.Conn, error) {
	_, patient := ctx.Deadline()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := seqpacket.Dial(ctx, path)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, fs.ErrPermission):
			return nil, situation.Of(ErrDenied, "user %[1]d may not open the socket %[2]s: %[3]v; start the service with --mode 0660, for a group, or "+
				"--mode 0666, for all, its socket in a folder that this user may enter, and make pools with uid=%[1]d or gid= for it", os.Getuid(), path, err)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED):
			return nil, err
		}
		missing := fmt.Errorf("%w: nothing listens on %s; start it with `poolsvc serve`, or set POOLBRIDGE_SOCKET (%w)",
			ErrNotRunning, path, err)
		if !patient {
			return nil, missing
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), missing)
		case <-time.After(pause): // a socket that does not exist yet cannot be waited on
		}
	}
}

// Session is the session's id within the epoch.
func (c *Client) Session() uint64 { return c.session }

// Epoch identifies this life of the service.
func (c *Client) Epoch() mempool.Epoch { return c.epoch }

// Done is closed when the connection is gone, and with it every lease.
func (c *Client) Done() <-chan struct{} { return c.done }

// receive reads what the service sends until the connection ends.
func (c *Client) receive() {
	var goodbye error
	for {
		packet, fds, err := c.conn.RecvInto(packets)
		if err == nil {
			err = c.take(packet.Data, fds, &goodbye)
			packet.Free()
			err = errors.Join(err, fds.Close()) // what nobody took
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
			return situation.Of(ErrProtocol, "a reply to request %d, which nobody made", h.Q)
		}
		defer c.leave() // after what is to be given back has become a task
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
	case *wire.Member:
		c.shared.memberCame(n, fds)
	case *wire.Wanted:
		c.tasks.add(func() { c.wanted(n.Pool) })
	}
	if errors.Is(err, wire.CodeUnsupported) {
		return nil // a notice of a later version that this client need not know
	}
	return err
}

// end fails every call that waits; the connection is gone, or nothing that comes over it can be believed.
func (c *Client) end(err, goodbye error) {
	err = fmt.Errorf("%w: %w; the session's leases and subscriptions have ended, what it was writing has failed, and names that it did not keep "+
		"are gone; what is mapped can still be read: dial again to go on", ErrDisconnected, cmp.Or(goodbye, err))
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
	c.giveFramesBack()
}

// idle notes that a call or what follows it has ended, and tells Close when the last has. c.mu is held.
func (c *Client) idle() {
	if c.busy--; c.busy == 0 && c.closing {
		c.quieten()
	}
}

// quieten tells Close that nobody is busy any more; what Close itself asks later changes nothing. c.mu is held.
func (c *Client) quieten() {
	select {
	case <-c.quiet:
	default:
		close(c.quiet)
	}
}

// closeGrace is how long Close waits for a service that does not answer.
const closeGrace = 2 * time.Second

// Close fails the calls that wait, ends every lease, what was being written as incomplete, unmaps everything and ends
// the session. When it returns, the leases have ended and the names are gone for everybody, unless the service does not
// answer. Closing again does nothing.
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
	var err error
	for _, l := range leases {
		ended := l.Release(true)
		if !errors.Is(ended, ErrReleased) && !errors.Is(ended, errClientClosed) && !errors.Is(ended, ErrDisconnected) {
			err = errors.Join(err, ended) // else somebody ended it just now
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

// hangUp ends the connection, once the service has ended the session: it closes its end after that.
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

// awaitCancelled waits until the calls that were cancelled are answered and what they were granted is given back: until this
// process ends, the service would hold what it has granted.
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

// tasksDone is closed when the tasks that there are were run: they are run in order.
func (c *Client) tasksDone() <-chan struct{} {
	done := make(chan struct{})
	c.tasks.add(func() { close(done) })
	return done
}

// Stats is the service's accounting, of the pools that this client may use or destroy, by id.
func (c *Client) Stats(ctx context.Context) (mempool.Stats, error) {
	var reply wire.StatsReply
	if err := c.call(ctx, &wire.StatsRequest{}, &call{into: &reply}); err != nil {
		return mempool.Stats{}, err // the reply may still come
	}
	return statsOf(reply.Stats), nil
}

// Unpublish removes a name; the buffer lives on for those who have leases on it.
func (c *Client) Unpublish(ctx context.Context, name string) error {
	return c.call(ctx, &wire.Unpublish{Name: name}, &call{into: &wire.EmptyReply{}})
}
