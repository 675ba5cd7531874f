package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// task is something that a worker does for a check. The fields are the arguments. The name of a task is the name of its type. A worker in
// Go does the task by the method `do`. A worker in Python calls the function that `poolbridge._verify.worker` lists under this name.
type task interface {
	do(ctx context.Context, w *Worker) (answer any, err error)
}

// tasks has the types of all tasks, by name.
var tasks = make(map[string]reflect.Type)

func init() {
	for _, t := range []task{
		check{}, produce{}, both{}, twice{}, readOnly{}, openFile{}, ownLegacy{}, descriptor{}, rounds{}, secondContext{}, queueRead{},
		endRead{}, wait{}, publish{}, take{}, releaseKept{}, leave{},
	} {
		tasks[nameOf(t)] = reflect.TypeOf(t)
	}
}

func nameOf(t task) string { return reflect.TypeOf(t).Name() }

// Failure is an error of a worker.
type Failure struct {
	// Type is the type of a Python exception or of a Go error. Code is the error code of the protocol, if the error has one.
	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

func (f *Failure) Error() string { return f.Type + ": " + f.Message }

// failure returns an error as a Failure.
func failure(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Type: reflect.TypeOf(err).String(), Message: err.Error(), Code: bridge.Code(err)}
	if result, ok := errors.AsType[cuda.Result](err); ok {
		f.Type = result.Name()
	}
	return f
}

// hasCode reports whether err is the error of a worker with this code.
func hasCode(err error, code string) bool {
	f, ok := errors.AsType[*Failure](err)
	return ok && f.Code == code
}

// Worker does tasks in Go. It connects to the service when a task first needs the service.
type Worker struct {
	// Socket is the path of the service's socket.
	Socket string
	// Device names the GPU that the worker uses: its ordinal or its UUID. If Device is empty, the worker uses the GPU that has the memory.
	Device string

	client  *bridge.Client
	gpus    gpus
	reading *reading
	intakes map[string]*intake // subscriptions, by channel
}

// patience is the limit of a wait that must not end before the check does.
const patience = time.Minute

// Serve reads tasks from `in`, one JSON object on each line, and writes the answers to `out`, until `in` has no more data.
func (w *Worker) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	defer func() { _ = w.close() }()
	w.gpus.device = w.Device
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		answer, err := w.carryOut(ctx, lines.Bytes())
		if err := answers.Encode(reply{failure(err), answer}); err != nil {
			return err
		}
	}
	return lines.Err()
}

// assignment is what a worker gets, and reply is what it answers.
type (
	assignment struct {
		Task string `json:"task"`
		With any    `json:"with"`
	}
	reply struct {
		Error  *Failure `json:"error"`
		Answer any      `json:"answer"`
	}
)

func (w *Worker) carryOut(ctx context.Context, line []byte) (answer any, err error) {
	var with json.RawMessage
	o := assignment{With: &with}
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, err
	}
	kind, ok := tasks[o.Task]
	if !ok {
		return nil, fmt.Errorf("unknown task %q", o.Task)
	}
	t := reflect.New(kind)
	if err := json.Unmarshal(with, t.Interface()); err != nil {
		return nil, err
	}
	return t.Elem().Interface().(task).do(ctx, w)
}

// connected returns the worker's session. If the worker has none, connected waits for the service and opens one.
func (w *Worker) connected(ctx context.Context) (c *bridge.Client, err error) {
	if w.client == nil {
		w.client, err = bridge.Dialer{Device: w.Device, Wait: true}.Dial(ctx, w.Socket)
	}
	return w.client, err
}

// lease leases the buffer with the name.
func (w *Worker) lease(ctx context.Context, name string, write bool) (*bridge.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	return c.Get(ctx, name, bridge.LeaseOptions{Write: write})
}

// using leases the buffer with the name while it calls f.
func (w *Worker) using(ctx context.Context, name string, write bool, f func(*bridge.Lease, memory) error) error {
	l, err := w.lease(ctx, name, write)
	if err != nil {
		return err
	}
	m, err := memoryOf(ctx, l)
	if err == nil {
		err = f(l, m)
	}
	return errors.Join(err, l.Release(err != nil && write))
}

// allocate allocates a buffer for a pattern in the pool with the name, and writes the pattern.
func (w *Worker) allocate(ctx context.Context, pool string, p *Pattern) (*bridge.Lease, error) {
	c, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	open, err := c.OpenPool(ctx, pool)
	if err != nil {
		return nil, err
	}
	return w.gpus.allocate(ctx, open.Allocate, p)
}

// allocate lets the function `get` allocate a buffer for a pattern, and writes the pattern.
func (g *gpus) allocate(ctx context.Context, get func(context.Context, mempool.Tensor) (*bridge.Lease, error), p *Pattern) (*bridge.Lease, error) {
	l, err := get(ctx, p.tensor())
	if err != nil {
		return nil, err
	}
	m, err := memoryOf(ctx, l)
	if err == nil {
		err = g.fill(m, p)
	}
	if err != nil {
		return nil, errors.Join(err, l.Release(true))
	}
	return l, nil
}

// sync returns when the service has handled all releases that the worker has sent. The service handles the requests of a session in order,
// but does not answer a release. So sync sends another request and waits for the answer.
func (w *Worker) sync(ctx context.Context) error {
	_, err := w.client.Stats(ctx)
	return err
}

// close ends the session, and gives up the GPUs and all memory.
func (w *Worker) close() error {
	_, err := leave{}.do(context.Background(), w)
	if w.client != nil {
		err = errors.Join(err, w.client.Close())
		w.client = nil
	}
	return errors.Join(err, w.gpus.close())
}
