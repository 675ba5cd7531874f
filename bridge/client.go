package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Client is a session with a service in another process. Its methods may be called from several goroutines.
type Client struct {
	conn    *seqpacket.Conn
	epoch   mempool.Epoch
	session uint64
	device  string
	done    chan struct{} // closed when the connection is gone; err says why
	err     error

	mu      sync.Mutex
	lastQ   uint32
	calls   map[uint32]*call
	pools   map[uint64]*Pool
	blocks  map[uint64]*block
	leases  map[*Lease]struct{}
	closing bool
}

// call is a request that waits for its reply.
type call struct {
	op    string
	into  wire.Reply
	files func(*seqpacket.FDs) // takes what came along; called before done
	done  chan error
}

// Dial opens a session with the service that listens at path, as the zero [Dialer] does.
func Dial(ctx context.Context, path string) (*Client, error) { return Dialer{}.Dial(ctx, path) }

// Dialer says how to be a client. Its zero value is useful.
type Dialer struct {
	// Device is the GPU that the client works on, an ordinal or a UUID, where that is not the one that has the memory:
	// what it opens is made reachable from there. Empty: the memory's own.
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
	c := &Client{conn: conn, device: d.Device, done: make(chan struct{}), calls: make(map[uint32]*call), pools: make(map[uint64]*Pool),
		blocks: make(map[uint64]*block), leases: make(map[*Lease]struct{})}
	go c.receive()
	var reply wire.HelloReply
	if err := c.call(ctx, &wire.Hello{Versions: []uint64{wire.Version}, Name: filepath.Base(os.Args[0])}, &reply, nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.epoch, c.session = mempool.Epoch(reply.Epoch), reply.Session
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
			return nil, situation(ErrDenied, "user %d may not open the socket %s: %v", os.Getuid(), path, err)
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

// call sends a request and waits for its reply, into which it is read.
func (c *Client) call(ctx context.Context, r wire.Request, into wire.Reply, files func(*seqpacket.FDs)) error {
	pending := &call{op: r.Op(), into: into, files: files, done: make(chan error, 1)}
	q, err := c.register(pending)
	if err != nil {
		return err
	}
	if err := c.send(q, r); err != nil {
		c.forget(q)
		return err
	}
	select {
	case err := <-pending.done:
		return err
	case <-ctx.Done():
	}
	// The service may have answered meanwhile: whatever it says now is the result.
	if err := c.send(0, &wire.Cancel{Request: uint64(q)}); err != nil {
		return err
	}
	err = <-pending.done
	if errors.Is(err, ErrCancelled) {
		return fmt.Errorf("poolbridge %s: %w", r.Op(), context.Cause(ctx))
	}
	return err
}

func (c *Client) register(pending *call) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		return 0, c.err
	}
	for {
		c.lastQ++
		if _, taken := c.calls[c.lastQ]; c.lastQ != 0 && !taken {
			c.calls[c.lastQ] = pending
			return c.lastQ, nil
		}
	}
}

func (c *Client) forget(q uint32) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := c.calls[q]
	delete(c.calls, q)
	return pending
}

var packets = sync.Pool{New: func() any { return new([]byte) }}

func (c *Client) send(q uint32, r wire.Request) error {
	buf := packets.Get().(*[]byte)
	defer packets.Put(buf)
	packet, err := wire.AppendRequest((*buf)[:0], q, r)
	if err != nil {
		return situation(ErrInvalid, "%v", err)
	}
	*buf = packet
	if err := c.conn.Send(packet, nil); err != nil {
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	return nil
}

// receive reads what the service sends until the connection ends.
func (c *Client) receive() {
	buf := make([]byte, wire.MaxPacket)
	var goodbye string
	for {
		n, fds, err := c.conn.Recv(buf)
		if err == nil {
			err = c.take(buf[:n], fds, &goodbye)
			err = errors.Join(err, fds.Close()) // what nobody took
		}
		if err != nil {
			c.end(err, goodbye)
			return
		}
	}
}

// take handles one packet of the service.
func (c *Client) take(packet []byte, fds *seqpacket.FDs, goodbye *string) error {
	h, err := wire.DecodeHeader(packet)
	if err != nil {
		return err
	}
	if h.Q == 0 {
		n, err := h.DecodeNotice()
		switch n := n.(type) {
		case *wire.Recall:
			return c.recall(n.Blocks)
		case *wire.Goodbye:
			*goodbye = n.Reason
		}
		if errors.Is(err, wire.CodeUnsupported) {
			return nil // a notice of a later version that this client need not know
		}
		return err
	}
	pending := c.forget(h.Q)
	if pending == nil {
		return situation(ErrProtocol, "a reply to request %d, which nobody made", h.Q)
	}
	err = h.DecodeReply(pending.into)
	if failure, ok := errors.AsType[*wire.Error](err); ok {
		pending.done <- remoteError(pending.op, failure)
		return nil
	}
	if err == nil && pending.files != nil {
		pending.files(fds)
	}
	pending.done <- err
	return err
}

// end fails every call that waits; the connection is gone.
func (c *Client) end(err error, goodbye string) {
	if goodbye != "" {
		err = fmt.Errorf("%w: the service said: %s", ErrDisconnected, goodbye)
	} else {
		err = fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	c.mu.Lock()
	if c.closing {
		err = situation(ErrClosed, "the client was closed")
	}
	calls := c.calls
	c.calls, c.err = nil, err
	c.mu.Unlock()
	for _, pending := range calls {
		pending.done <- err
	}
	close(c.done)
}

// Close ends every lease, what was being written as incomplete, unmaps everything and ends the session. Closing again
// does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	leases := slices.Collect(maps.Keys(c.leases))
	c.mu.Unlock()
	if !first {
		<-c.done
		return nil
	}
	var err error
	for _, l := range leases {
		ended := l.Release(true)
		if !errors.Is(ended, ErrReleased) && !errors.Is(ended, ErrDisconnected) { // by somebody else just now
			err = errors.Join(err, ended)
		}
	}
	err = errors.Join(err, c.unmapAll())
	err = errors.Join(err, c.conn.Close())
	<-c.done
	return err
}

// Stats is the service's accounting, of the pools that this client may use.
func (c *Client) Stats(ctx context.Context) (mempool.Stats, error) {
	var reply wire.StatsReply
	err := c.call(ctx, &wire.StatsRequest{}, &reply, nil)
	return statsOf(reply.Stats), err
}

// Unpublish removes a name; the buffer lives on for those who have leases on it.
func (c *Client) Unpublish(ctx context.Context, name string) error {
	return c.call(ctx, &wire.Unpublish{Name: name}, &wire.EmptyReply{}, nil)
}
