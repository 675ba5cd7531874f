package work

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// Worker does tasks. It uses one connection to the service, and opens this connection when a task first needs the service.
type Worker struct {
	// Socket is the path of the service's socket.
	Socket string
	// Device names the GPU that the worker uses: its ordinal or its UUID. If Device is empty, the worker uses the GPU that has the
	// memory.
	Device string

	client   *bridge.Client
	bench    Bench
	held     []*bridge.Lease
	reading  *reading
	imported *imported
	intakes  map[string]*intake // subscriptions, by channel
	kept     []func() error     // functions that release what earlier tasks kept for later tasks
}

// patience is the limit of a wait if the task has no Timeout.
const patience = time.Minute

var tasks = map[string]func(*Worker, context.Context, *Task) (*Answer, error){
	"prepare":          (*Worker).prepare,
	"check":            (*Worker).check,
	"produce":          (*Worker).produce,
	"hold":             (*Worker).hold,
	"release":          (*Worker).release,
	"wait":             (*Worker).wait,
	"forbidden":        (*Worker).forbidden,
	"fault":            (*Worker).fault,
	"twice":            (*Worker).twice,
	"both":             (*Worker).both,
	"context-life":     (*Worker).contextLife,
	"second-context":   (*Worker).secondContext,
	"open-file":        (*Worker).openFile,
	"own-legacy":       (*Worker).ownLegacy,
	"await":            (*Worker).await,
	"slow-begin":       (*Worker).slowBegin,
	"slow-end":         (*Worker).slowEnd,
	"descriptor":       (*Worker).descriptorOpen,
	"descriptor-close": (*Worker).descriptorClose,
	"refused":          (*Worker).refused,
	"stream-take":      (*Worker).streamTake,
	"stream-release":   (*Worker).streamRelease,
	"stream-leave":     (*Worker).streamLeave,
	"stream-publish":   (*Worker).streamPublish,
	"stream-relay":     (*Worker).streamRelay,
	"stream-close":     (*Worker).streamClose,
}

// Serve reads tasks from `in`, does the tasks and writes the answers to `out`. It returns when `in` has no more data.
func (w *Worker) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	defer func() { _ = w.Close() }()
	w.bench.Device = w.Device
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		if err := answers.Encode(w.carryOut(ctx, lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (w *Worker) carryOut(ctx context.Context, line []byte) *Answer {
	var t Task
	if err := json.Unmarshal(line, &t); err != nil {
		return &Answer{Error: failure(err)}
	}
	do, ok := tasks[t.Task]
	if !ok {
		return &Answer{Error: failure(fmt.Errorf("unknown task %q", t.Task))}
	}
	a, err := do(w, ctx, &t)
	if err != nil {
		return &Answer{Error: failure(err)}
	}
	a.OK = true
	return a
}

// failure returns an error as a Failure, for an answer.
func failure(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Type: reflect.TypeOf(err).String(), Message: err.Error()}
	if result, ok := errors.AsType[cuda.Result](err); ok {
		f.Type = result.Name()
	}
	f.Code = bridge.Code(err)
	return f
}

// connected returns the worker's session with the service. If the worker has no session, connected opens one.
func (w *Worker) connected(ctx context.Context) (*bridge.Client, error) {
	if w.client != nil {
		return w.client, nil
	}
	c, err := bridge.Dialer{Device: w.Device}.Dial(ctx, w.Socket)
	if err != nil {
		return nil, err
	}
	w.client = c
	return c, nil
}

func (t *Task) timeout() time.Duration {
	if t.Timeout <= 0 {
		return patience
	}
	return seconds(t.Timeout)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// within calls the function f with the worker's session. `limit` is the time limit for opening the session and for f together.
func within[T any](ctx context.Context, w *Worker, limit time.Duration, f func(context.Context, *bridge.Client) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := w.connected(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return f(ctx, c)
}

// lease leases the buffer with the name.
func (w *Worker) lease(ctx context.Context, t *Task, name string, write bool) (*bridge.Lease, error) {
	return within(ctx, w, t.timeout(), func(ctx context.Context, c *bridge.Client) (*bridge.Lease, error) {
		return c.Get(ctx, name, bridge.LeaseOptions{Write: write})
	})
}

func (w *Worker) pool(ctx context.Context, name string, limit time.Duration) (*bridge.Pool, error) {
	return within(ctx, w, limit, func(ctx context.Context, c *bridge.Client) (*bridge.Pool, error) { return c.OpenPool(ctx, name) })
}

func (w *Worker) channel(ctx context.Context, name string, limit time.Duration) (*bridge.Channel, error) {
	return within(ctx, w, limit, func(ctx context.Context, c *bridge.Client) (*bridge.Channel, error) { return c.OpenChannel(ctx, name) })
}

func (w *Worker) allocate(ctx context.Context, p *bridge.Pool, t mempool.Tensor, limit time.Duration) (*bridge.Lease, error) {
	return within(ctx, w, limit, func(ctx context.Context, _ *bridge.Client) (*bridge.Lease, error) { return p.Allocate(ctx, t) })
}

// prepare does nothing, because a Go worker has nothing to load.
func (w *Worker) prepare(context.Context, *Task) (*Answer, error) { return &Answer{}, nil }

// check compares a buffer with the pattern of the task. If they are equal, check writes another pattern or applies a
// transform, if the task has one of them.
func (w *Worker) check(ctx context.Context, t *Task) (a *Answer, err error) {
	changes := t.Then != nil || t.Transform != nil
	l, err := w.lease(ctx, t, t.Name, t.Write || changes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(err != nil && changes)) }()
	n, err := l.Tensor().Elements()
	if err != nil {
		return nil, err
	}
	mapped, err := w.mapped(ctx, l)
	if err != nil {
		return nil, err
	}
	a = &Answer{Elements: n, Mapped: mapped}
	return a, w.compare(ctx, a, l, n, t)
}

// compare compares memory with the task's pattern. If they are equal, compare writes the pattern Then or applies Transform, if the task
// has one of them.
func (w *Worker) compare(ctx context.Context, a *Answer, m Memory, n uint64, t *Task) error {
	r, err := w.bench.Verify(ctx, m, n, t.Pattern)
	if err != nil {
		return err
	}
	a.Mismatches = r.Count
	switch {
	case r.Count > 0:
		a.First = []string{r.Err().Error()}
		return nil
	case t.Then != nil:
		err = w.bench.Fill(ctx, m, n, t.Then)
	case t.Transform != nil:
		err = w.bench.Apply(ctx, m, n, *t.Transform)
	default:
		return nil
	}
	a.Written = err == nil
	return err
}

// mapped reports whether the worker uses the service's memory in place and not a copy of the memory.
func (w *Worker) mapped(ctx context.Context, l *bridge.Lease) (bool, error) {
	if b, err := l.Bytes(ctx); err != nil || b != nil {
		return b != nil, err
	}
	ptr, err := l.Pointer(ctx)
	if err != nil {
		return false, err
	}
	g, err := w.bench.GPUOf(cuda.DevicePtr(ptr))
	if err != nil {
		return false, err
	}
	about, err := g.Context.PointerAttributes(cuda.DevicePtr(ptr))
	return about.MemoryType == cuda.MemoryDevice, err
}

// produce allocates a buffer, writes a pattern to the buffer and publishes the buffer. The published buffer keeps its
// name after the session has ended.
func (w *Worker) produce(ctx context.Context, t *Task) (a *Answer, err error) {
	p, err := w.pool(ctx, t.Pool, t.timeout())
	if err != nil {
		return nil, err
	}
	l, err := w.allocate(ctx, p, mempool.Tensor{DType: t.Pattern.DType(), Shape: []uint64{t.Elements}}, t.timeout())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Release(err != nil)) }()
	if err := w.bench.Fill(ctx, l, t.Elements, t.Pattern); err != nil {
		return nil, err
	}
	return &Answer{Elements: t.Elements, Written: true}, l.Publish(ctx, mempool.Publication{Name: t.Name, Keep: true})
}

// hold takes a lease and keeps the lease until the task "release".
func (w *Worker) hold(ctx context.Context, t *Task) (*Answer, error) {
	l, err := w.lease(ctx, t, t.Name, t.Write)
	if err != nil {
		return nil, err
	}
	w.held = append(w.held, l)
	return &Answer{PID: os.Getpid()}, nil
}

// release releases the leases that the task "hold" has taken.
func (w *Worker) release(context.Context, *Task) (*Answer, error) {
	var errs []error
	for _, l := range w.held {
		errs = append(errs, l.Release(false))
	}
	w.held = nil
	return &Answer{}, errors.Join(errs...)
}

// disconnect ends the session, and the session unmaps all its memory.
func (w *Worker) disconnect() error {
	_, err := w.release(context.Background(), nil)
	_, left := w.streamLeave(context.Background(), nil)
	err = errors.Join(err, left)
	if w.client != nil {
		err = errors.Join(err, w.client.Close())
		w.client = nil
	}
	return err
}

// Close ends the session, and releases all other memory and all GPU streams that the worker keeps.
func (w *Worker) Close() error {
	errs := []error{w.disconnect()}
	for _, end := range w.kept {
		errs = append(errs, end())
	}
	w.kept = nil
	return errors.Join(append(errs, w.bench.Close())...)
}
