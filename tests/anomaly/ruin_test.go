package anomaly

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// ruins are faults after which a process cannot use a GPU any more: a call finds a sticky error of earlier work, the
// GPU is gone, or the driver shuts down.
var ruins = []struct {
	name, rule string
	passes     bool // the test removes the fault after the operation
}{
	{name: "an error that sticks", rule: "call=* error=ILLEGAL_ADDRESS nth={n}"},
	{name: "a GPU that fell off the bus", rule: "call=* lost nth={n} device={gpu}"},
	{name: "a driver that shuts down", rule: "call=* error=DEINITIALIZED after={n}", passes: true},
}

// ruinedDevices is how many GPUs a process can ruin, one after another. GPU 0 is not one of them, because the
// neighbour uses it.
const ruinedDevices = 7

// ruinLimit is how long a run may take on a busy machine. A longer run shows that something waits for a GPU that is
// gone.
const ruinLimit = 25 * time.Second

// ruinTask says how a process ruins GPUs. The process runs an operation at most once for each GPU. It
// ruins the first GPU at driver call N of the operation, the second GPU at call 2N, the third GPU at call 4N, and so on.
type ruinTask struct {
	Kind      mempool.Kind
	Operation int
	Side      string
	Ruin      int
	N         int
}

// ruinReport is the result of a ruinTask. Next is the number of the call with which the next task begins; 0: no call is
// left to fail.
type ruinReport struct {
	Next  int
	Runs  int
	Error string
}

func TestARuinedGPUEndsNothingElse(t *testing.T) {
	needSimulation(t)
	var runs atomic.Int64
	t.Cleanup(func() { t.Logf("%d runs", runs.Load()) })
	for _, k := range triedKinds() {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			for o := range operations {
				if operations[o].free || operations[o].calm {
					continue
				}
				for i := range ruins {
					for _, side := range []string{"service", "client"} {
						for n := 1; n != 0; {
							r := ruin(t, ruinTask{k, o, side, i, n})
							n = r.Next
							runs.Add(int64(r.Runs))
						}
					}
				}
			}
		})
	}
}

// ruin starts a process that does the task, and returns its report.
func ruin(t *testing.T, task ruinTask) (r ruinReport) {
	t.Helper()
	p, err := start("ruin", "SIMCUDA_DEVICES="+strconv.Itoa(1+ruinedDevices))
	require.NoError(t, err)
	require.NoError(t, p.ask(task, &r), "%+v", task)
	require.Empty(t, r.Error, "%+v, %s, from call %d of the %s", task, operations[task.Operation].name+", "+ruins[task.Ruin].name, task.N, task.Side)
	assert.NoError(t, p.end())
	return r
}

// beRuined does the work of a process that ruin has started. The process is a service, and it starts a client. It ruins
// GPUs for itself or for the client.
func beRuined(in io.Reader, out io.Writer) int {
	var task ruinTask
	if err := json.NewDecoder(in).Decode(&task); err != nil {
		return 1
	}
	dir, err := os.MkdirTemp(os.Getenv("SIMCUDA_COUNTS"), "ruin-") // the test removes it
	if err != nil {
		log.Print(err)
		return 1
	}
	driver.settle(dir)
	_ = os.Setenv("SIMCUDA_DEVICES", strconv.Itoa(1+ruinedDevices))
	r := task.carryOut(dir)
	if err := eventually(func() error { return goleak.Find() }); err != nil && r.Error == "" {
		r.Error = err.Error()
	}
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return 1
	}
	return 0
}

func (task ruinTask) carryOut(dir string) (r ruinReport) {
	client := &remote{}
	defer func() {
		if client.process != nil {
			_ = client.end()
		}
	}()
	neighbour, err := start("client")
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer func() { _ = neighbour.end() }()
	r.Next = task.N
	for device := 1; device <= ruinedDevices; device++ {
		begun := time.Now()
		calls, err := task.run(dir, client, neighbour, strconv.Itoa(device), r.Next)
		if err == nil && time.Since(begun) > ruinLimit {
			err = fmt.Errorf("it took %v", time.Since(begun))
		}
		if err != nil {
			r.Error = fmt.Sprintf("call %d of the %s: %v: %v", r.Next, task.Side, calls, err)
			return r
		}
		r.Runs++
		if len(calls) == 0 {
			r.Next = 0
			return r
		}
		r.Next *= 2                            // the calls after this call fail too, so the test leaves out some of them
		if operations[task.Operation].abrupt { // the GPU of the neighbour may be ruined
			return r
		}
	}
	return r
}

// run ruins one GPU during an operation.
func (task ruinTask) run(dir string, client *remote, neighbour *process, device string, n int) (calls []string, err error) {
	if client.process == nil {
		if client.process, err = start("client"); err != nil {
			return nil, err
		}
	}
	client.device = device
	s, err := set(dir, task.Kind, client, neighbour)
	if err != nil {
		return nil, fmt.Errorf("setting the stage: %w", err)
	}
	o := operations[task.Operation]
	if o.prepare != nil {
		if err := o.prepare(s); err != nil {
			return nil, fmt.Errorf("before: %w", err)
		}
	}
	if _, err := client.do(o.before...); err != nil {
		return nil, fmt.Errorf("before: %w", err)
	}
	pid := os.Getpid()
	if task.Side == "client" {
		pid = client.pid()
	}
	ruin := ruins[task.Ruin]
	if err := driver.arm(pid, strings.NewReplacer("{n}", strconv.Itoa(n), "{gpu}", device).Replace(ruin.rule)); err != nil {
		return nil, err
	}
	_, failed := s.act(o)
	s.rest()
	if calls, err = driver.failed(); err != nil {
		return calls, err
	}
	if len(calls) == 0 || ruin.passes { // otherwise the fault stays, because a GPU that is gone does not come back
		if err := driver.control(""); err != nil {
			return nil, err
		}
	}
	return calls, errors.Join(typed(failed), s.ruined(o, client, pid), driver.control(""))
}

// typed returns an error if an error of a client has no error code of the protocol.
func typed(err error) error {
	if err == nil || bridge.Code(err) != "" {
		return nil
	}
	if failed, ok := errors.AsType[*failure](err); ok && failed.code != "" {
		return nil
	}
	return fmt.Errorf("an error of no sort: %w", err)
}

// ruined checks the service after a process has lost the GPU of the client's pool. pid is the process: the client or
// this process.
func (s *stage) ruined(o operation, client *remote, pid int) error {
	if err := s.accounts(true); err != nil {
		return err
	}
	if err := s.neighbours(); err != nil {
		return err
	}
	if !slices.Contains(o.act, "close") {
		if _, err := client.do("close"); typed(err) != nil {
			return err
		}
	}
	if pid == client.pid() { // others can use the client's memory only after the client's process has ended
		if err := client.end(); err != nil {
			return err
		}
		client.process = nil
	}
	if err := s.destroyed(); err != nil {
		return err
	}
	if err := errors.Join(s.neighbours(), s.accounts(true), s.shutDown(), s.accounts(true)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if reports := driver.misuse(o.meant(true)); len(reports) > 0 {
		return fmt.Errorf("misuse: %q", reports)
	}
	return nil
}

// destroyed destroys the client's pool, and waits until the pool is gone.
func (s *stage) destroyed() error {
	p, ok := s.pool()
	if !ok || s.down {
		return nil
	}
	_ = s.admin.DestroyPool(p.Pool.ID) // memory that the driver did not free is freed with the pool
	return eventually(func() error {
		if p, ok := s.pool(); ok {
			return fmt.Errorf("the pool is still there: %+v", p)
		}
		return nil
	})
}
