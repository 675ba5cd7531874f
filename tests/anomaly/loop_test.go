package anomaly

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// kinds are the kinds whose memory comes from CUDA.
var kinds = []mempool.Kind{mempool.Device, mempool.VMM, mempool.Legacy, mempool.Pinned}

func TestEveryDriverCallMayFail(t *testing.T) {
	needSimulation(t)
	client, err := start("client")
	require.NoError(t, err)
	neighbour, err := start("client")
	require.NoError(t, err)
	loop := &loop{dir: t.TempDir(), client: &remote{process: client, device: "1"}, neighbour: neighbour,
		failed: make(map[string]bool), made: make(map[string]bool)}
	defer func() { assert.NoError(t, loop.client.end()); assert.NoError(t, neighbour.end()) }()
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			for _, o := range operations {
				if !t.Run(o.name, func(t *testing.T) { loop.operation(t, k, o); loop.operations++ }) {
					t.Fatal("the stage is still up: what comes next would fail with it")
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	if all := len(kinds) * len(operations); loop.operations < all {
		t.Logf("%d of %d operations were gone through: not every driver call can have failed", loop.operations, all)
		return
	}
	// cuInit and the lookup of calls happen once in a process; see TestAStartThatFailsIsTriedAgain.
	missed := slices.DeleteFunc(slices.Sorted(maps.Keys(loop.made)), func(call string) bool { return loop.failed[call] || call == seldom })
	assert.Empty(t, missed, "driver calls that no run failed")
	t.Logf("%d runs failed each of %d driver calls", loop.runs, len(loop.failed))
}

// seldom is a driver call that a process makes only if it unmaps a page while a stream may still use the page. This depends on
// timing: the process may make the call before or after the part of a run in which calls fail.
const seldom = "cuStreamQuery"

// loop does the runs of all operations, and counts them.
type loop struct {
	dir          string
	client       *remote
	neighbour    *process
	operations   int
	runs         int
	calls        []string        // driver calls that failed in the last run
	failed, made map[string]bool // driver calls
}

// operation runs an operation again and again. In each run, another driver call of the service or of the client fails.
func (l *loop) operation(t *testing.T, k mempool.Kind, o operation) {
	running := goleak.IgnoreCurrent()
	require.NoError(t, l.run(k, o, 0, fault{}, 0), "without a failure, for the first time")
	require.NoError(t, eventually(func() error { return goleak.Find(running) }), "a session may be about to end")
	_, err := l.client.do("idle")
	require.NoError(t, err)
	before, err := l.client.estates()
	require.NoError(t, err)
	l.count(t, k, o, before)
	for _, side := range []string{"service", "client"} {
		for _, f := range tried() {
			if f.once && k != kinds[0] {
				continue
			}
			for n := 1; ; n++ {
				pid := os.Getpid()
				if side == "client" {
					pid = l.client.pid()
				}
				var r runError
				err := l.run(k, o, pid, f, n)
				if errors.As(err, &r) {
					require.NoError(t, r.err, "call %d of the %s fails with %s: %v", n, side, f.error, r.calls)
				}
				if errors.Is(err, errClean) {
					break
				}
				require.False(t, o.free, "the operation was to make no driver call")
				require.NoError(t, l.client.compare(before), "call %d of the %s failed with %s: %v", n, side, f.error, l.calls)
				require.Empty(t, driver.misuse(o.meant(false)), "call %d of the %s failed with %s: %v", n, side, f.error, l.calls)
			}
		}
	}
	require.Empty(t, driver.misuse(o.meant(false)))
	require.NoError(t, eventually(func() error { return goleak.Find(running) }))
}

// count runs an operation without a failure, and adds the driver calls of the operation to made.
func (l *loop) count(t *testing.T, k mempool.Kind, o operation, before estates) {
	pids := []int{os.Getpid(), l.client.pid()}
	var was [2]tally
	for i, pid := range pids {
		var err error
		was[i], err = driver.tally(pid)
		require.NoError(t, err)
	}
	require.NoError(t, l.run(k, o, 0, fault{}, 0), "without a failure")
	for i, pid := range pids {
		now, err := driver.tally(pid)
		require.NoError(t, err)
		for call, n := range now.calls {
			if n > was[i].calls[call] {
				l.made[call] = true
			}
		}
	}
	require.NoError(t, l.client.compare(before), "without a failure")
}

var errClean = errors.New("no call was left to fail")

// runError is the error of a run, with the driver calls that failed in the run.
type runError struct {
	calls []string
	err   error
}

func (r runError) Error() string { return fmt.Sprintf("%v: %v", r.calls, r.err) }

// run makes a stage and does an operation once. Driver call number n of the process pid fails; pid 0: no call fails.
func (l *loop) run(k mempool.Kind, o operation, pid int, f fault, n int) error {
	l.runs++
	s, err := set(l.dir, k, l.client, l.neighbour)
	if err != nil {
		return runError{nil, fmt.Errorf("setting the stage: %w", err)}
	}
	calls, err := s.play(o, pid, f, n)
	l.calls = calls
	for _, call := range calls {
		l.failed[call] = true
	}
	switch {
	case err != nil:
		return runError{calls, err}
	case pid != 0 && len(calls) == 0:
		return errClean
	}
	return nil
}

func (s *stage) play(o operation, pid int, f fault, n int) (calls []string, err error) {
	if o.prepare != nil {
		if err := o.prepare(s); err != nil {
			return nil, fmt.Errorf("before: %w", err)
		}
	}
	if _, err := s.client.do(o.before...); err != nil {
		return nil, fmt.Errorf("before: %w", err)
	}
	if pid != 0 {
		if err := driver.arm(pid, f.rule(n)); err != nil {
			return nil, err
		}
	}
	done, failed := s.act(o)
	s.rest()
	if calls, err = driver.disarm(); err != nil {
		return calls, err
	}
	if pid == 0 && failed != nil {
		return calls, failed
	}
	if err := f.told(failed); err != nil {
		return calls, err
	}
	if err := s.accounts(false); err != nil {
		return calls, err
	}
	if err := s.neighbours(); err != nil {
		return calls, err
	}
	if failed != nil {
		if err := s.again(o, done); err != nil {
			return calls, fmt.Errorf("again, after %w: %w", failed, err)
		}
	}
	if o.after != nil {
		if err := o.after(s); err != nil {
			return calls, err
		}
	}
	return calls, s.strike()
}

// act does an operation. It returns how many steps of the client succeeded, or -1 if o.local failed, which runs before
// the first step.
func (s *stage) act(o operation) (int, error) {
	if o.local != nil {
		if err := o.local(s); err != nil {
			return -1, err
		}
	}
	return s.client.do(o.act...)
}

// rest waits until the client's pool holds no blocks, or until a driver call has failed.
func (s *stage) rest() {
	_ = eventually(func() error {
		if p, ok := s.pool(); ok && p.Held != 0 {
			if calls, err := driver.failed(); err == nil && len(calls) == 0 {
				return errors.New("blocks are held")
			}
		}
		return nil
	})
}

// again continues an operation with the step that failed. done is the result of act.
func (s *stage) again(o operation, done int) error {
	if done < 0 {
		if err := o.local(s); err != nil {
			return err
		}
		done = 0
	}
	_, err := s.client.do(o.act[done:]...)
	failed, ok := errors.AsType[*failure](err)
	if ok && (failed.code == bridge.Code(bridge.ErrReleased) || failed.code == bridge.Code(bridge.ErrNotFound)) {
		return nil // the first try had succeeded, although it returned an error
	}
	return err
}

// strike closes the client, and then the rest of the stage.
func (s *stage) strike() error {
	if _, err := s.client.do("close"); err != nil {
		return fmt.Errorf("closing the client: %w", err)
	}
	return s.gone()
}

// gone checks that the service has nothing of the client any more, and then ends the service.
func (s *stage) gone() error {
	if err := errors.Join(s.empty(), s.accounts(false), s.shutDown(), s.accounts(false)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}
