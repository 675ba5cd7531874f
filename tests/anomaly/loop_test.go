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

// seldom is a call that is made only when a page is unmapped while a stream may still use it. That depends on time, and may come before or
// after the part of a run in which calls fail.
const seldom = "cuStreamQuery"

// loop does the runs.
type loop struct {
	dir          string
	client       *remote
	neighbour    *process
	operations   int
	runs         int
	calls        []string        // that failed in the last run
	failed, made map[string]bool // driver calls
}

// operation fails each call of an operation, in the service and in the client.
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
		for _, f := range faults {
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

// count notes which driver calls an operation makes.
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

// runError is what is wrong after a run in which calls failed.
type runError struct {
	calls []string
	err   error
}

func (r runError) Error() string { return fmt.Sprintf("%v: %v", r.calls, r.err) }

// run sets a stage and goes through an operation once, while the nth driver call of a process fails.
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

// act does an operation. It returns how many steps of the client were taken; -1: not even the local ones.
func (s *stage) act(o operation) (int, error) {
	if o.local != nil {
		if err := o.local(s); err != nil {
			return -1, err
		}
	}
	return s.client.do(o.act...)
}

// rest waits until nothing is under way in the client's pool, or a call has failed.
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

// again continues an operation where it failed.
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
		return nil // it was done, although it returned an error
	}
	return err
}

// strike closes the stage.
func (s *stage) strike() error {
	if _, err := s.client.do("close"); err != nil {
		return fmt.Errorf("closing the client: %w", err)
	}
	return s.gone()
}

// gone closes what is left without the client.
func (s *stage) gone() error {
	if err := errors.Join(s.empty(), s.accounts(false), s.shutDown(), s.accounts(false)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}
