package anomaly

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// patience is the time limit of a step. No step takes that long.
const patience = time.Minute

// bufferBytes is the size of every buffer.
const bufferBytes = 64 << 10

// step is one operation that a test asks of a client.
type step struct {
	Op     string
	Path   string       `json:",omitempty"` // path of the socket
	Pool   string       `json:",omitempty"`
	Kind   mempool.Kind `json:",omitempty"`
	Device string       `json:",omitempty"`
	Lease  string       `json:",omitempty"` // name of a lease; the client publishes the lease under the same name
}

func (s step) String() string { return s.Op + " " + s.Lease }

// outcome says how many steps of a client succeeded, and with which error the next step failed.
type outcome struct {
	Taken       int
	Code, Error string
}

// err returns the error of the failed step, or nil.
func (o outcome) err() error {
	if o.Error == "" {
		return nil
	}
	return &failure{o.Code, o.Error}
}

// failure is an error of a client in another process, with its error code of the protocol.
type failure struct{ code, text string }

func (f *failure) Error() string { return f.code + ": " + f.text }

// beClient does the work of a client process. It reads lists of steps from the stream in, until the stream ends. For each
// list, it does the steps until a step fails, and writes the outcome to the stream out.
func beClient(in io.Reader, out io.Writer) int {
	c := &client{pools: make(map[string]*bridge.Pool), leases: make(map[string]*bridge.Lease)}
	steps, outcomes := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var todo []step
		if err := steps.Decode(&todo); err != nil {
			return 0
		}
		var o outcome
		for _, s := range todo {
			if err := c.do(s); err != nil {
				o.Code, o.Error = bridge.Code(err), err.Error()
				break
			}
			o.Taken++
		}
		if err := outcomes.Encode(o); err != nil {
			return 1
		}
	}
}

// client is the state of a client process.
type client struct {
	*bridge.Client
	pools  map[string]*bridge.Pool
	leases map[string]*bridge.Lease

	promised mempool.Fence
	line     *line
}

func (c *client) do(s step) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pool, l := c.pools[s.Pool], c.leases[s.Lease]
	switch s.Op {
	case "dial":
		c.Client, err = bridge.Dial(ctx, s.Path)
	case "create":
		if pool, err = c.CreatePool(ctx, poolSpec(s.Pool, s.Kind, s.Device)); err == nil {
			c.pools[s.Pool] = pool
		}
	case "open":
		if pool, err = c.TryOpenPool(ctx, s.Pool); err == nil {
			c.pools[s.Pool] = pool
		}
	case "alloc":
		if l, err = pool.TryAllocate(ctx, mempool.Bytes(bufferBytes)); err == nil {
			c.leases[s.Lease] = l
		}
	case "get":
		if l, err = c.TryGet(ctx, s.Lease, bridge.LeaseOptions{}); err == nil {
			c.leases[s.Lease+"'"] = l
		}
	case "fill":
		err = errors.Join(l.Fill(context.Background(), 0, bufferBytes, s.Lease[0]), l.CopyFrom(context.Background(), bufferBytes-8, pattern(s.Lease)))
	case "byte": // every byte of the buffer gets the same value
		err = l.Fill(context.Background(), 0, bufferBytes, s.Lease[0])
	case "check":
		err = check(l, s.Lease)
	case "publish":
		err = l.Publish(ctx, mempool.Publication{Name: s.Lease})
	case "promise": // publish now; the step keep completes the content
		err = c.promise(ctx, l, s.Lease)
	case "event": // publish now; the content is complete when an event has happened
		err = c.line.publish(ctx, l, s.Lease)
	case "stream":
		c.line, err = newLine(s.Device)
	case "early": // a stream waits for content that is not complete yet
		err = c.early(ctx, l)
	case "unpublish":
		err = c.Unpublish(ctx, s.Lease)
	case "keep":
		if clock, e := c.Clock(ctx); e == nil {
			err = clock.Reach(c.promised)
		}
	case "release":
		err = l.Release(false)
		_, told := c.Stats(ctx) // the answer to Stats comes after the release
		err = errors.Join(err, told)
	case "trim":
		_, err = pool.Trim(ctx, 0)
	case "destroy":
		err = pool.Destroy(ctx)
	case "close":
		err = c.Close()
		err = errors.Join(err, c.line.close())
		c.line = nil
		clear(c.pools)
		clear(c.leases)
	case "idle": // checks that no goroutine is left
		runtime.GC()
		err = eventually(func() error { return goleak.Find() })
	default:
		err = fmt.Errorf("there is no step %q", s.Op)
	}
	return err
}

// promise publishes a buffer. The content of the buffer is complete when the client's timeline reaches
// the fence c.promised.
func (c *client) promise(ctx context.Context, l *bridge.Lease, name string) error {
	clock, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	word, err := clock.Word(ctx)
	if err != nil {
		return err
	}
	c.promised = clock.Next(word)
	p := mempool.Publication{Name: name}
	p.Ready = &c.promised
	return l.Publish(ctx, p)
}

// early makes a stream wait for content that this client has promised and has not completed yet.
func (c *client) early(ctx context.Context, l *bridge.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err := l.WaitOn(ctx, c.line.queue)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // WaitOn could not make the stream wait, so it waited for the promise until its time limit
	}
	return err
}

// line is a stream of the client, and an event that the client records in this stream.
type line struct {
	gpu    *cuda.Context
	stream *cuda.Stream
	queue  mempool.Queue
	event  *mempool.Event
}

func newLine(device string) (*line, error) {
	d, err := mempool.FindDevice(device)
	if err != nil {
		return nil, err
	}
	l := new(line)
	if l.gpu, err = d.Retain(); err == nil {
		l.stream, err = l.gpu.NewStream()
	}
	l.queue = mempool.StreamQueue(l.gpu, l.stream)
	return l, err
}

// publish publishes a buffer with an event, which says when the content of the buffer is complete.
func (l *line) publish(ctx context.Context, lease *bridge.Lease, name string) (err error) {
	if l.event == nil {
		if l.event, err = mempool.NewEvent(l.gpu); err != nil {
			return err
		}
	}
	if err := l.event.Record(l.queue); err != nil {
		return err
	}
	p := mempool.Publication{Name: name}
	p.Event = l.event
	return lease.Publish(ctx, p)
}

func (l *line) close() error {
	if l == nil {
		return nil
	}
	var errs []error
	if l.event != nil {
		errs = append(errs, l.event.Close())
	}
	return errors.Join(append(errs, l.stream.Close(), l.gpu.Close())...)
}

func poolSpec(name string, k mempool.Kind, device string) mempool.PoolSpec {
	return mempool.PoolSpec{Name: name, Kind: k, Device: device, MaxBytes: 64 << 20}
}

// pattern returns the last 8 bytes of a buffer that fill has filled for a name.
func pattern(name string) []byte { return bytes.Repeat([]byte{name[0] ^ 0xff}, 8) }

// check compares the last 16 bytes of a buffer with the bytes that fill writes for a name.
func check(l *bridge.Lease, name string) error {
	got := make([]byte, 16)
	if err := l.CopyTo(context.Background(), got, bufferBytes-16); err != nil {
		return err
	}
	if want := append(bytes.Repeat([]byte{name[0]}, 8), pattern(name)...); !bytes.Equal(got, want) {
		return fmt.Errorf("the buffer holds %x, not %x", got, want)
	}
	return nil
}
