package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	// gpuBytesBeside is the free memory of the GPU that each check needs if checks run at the same time.
	gpuBytesBeside = 2 << 30
	// mostByDefault is the greatest number of checks that run at the same time if Options.Parallel is 0. If more checks run, they wait for
	// each other's locks in the driver, and all checks become slower.
	mostByDefault = 4
)

// Options says which checks Run runs, and with which settings.
type Options struct {
	// Self is the path of the program that contains the service and the Go workers. If Self is empty, Run uses the
	// running program.
	Self string
	// Python is the interpreter of the Python workers. It must have the poolbridge package.
	Python string
	// Elements is the number of float32 elements of a buffer.
	Elements uint64
	// Device names the GPU that the checks use: the ordinal or the UUID of the GPU.
	Device string
	// The process that writes a buffer first writes the value i + Seed into each element i. The process that answers in the same buffer
	// writes the value WorkerSeed − i.
	Seed, WorkerSeed int64
	// Workers is how many workers check one buffer at the same time.
	Workers int
	// Parallel is how many checks may run at the same time. If Parallel is 0, one check runs for each four CPUs, but at least 1 and at most 4
	// checks. A check of the scenario `order` never runs at the same time as another check. If several checks run at the same time, each check
	// needs 2 GiB of free memory of the GPU.
	Parallel int
	// LargeBytes is the size of the buffer in the check "large", for memory of a GPU. If LargeBytes is 0, this check does not run.
	LargeBytes uint64
	// Kinds are the kinds of memory that Run checks. If Kinds is empty, Run checks all kinds.
	Kinds []mempool.Kind
	// Only has patterns for the names of the checks that Run runs, in the form kind/scenario/check/consumer. A pattern may contain *. If
	// Only is empty, Run runs all checks.
	Only []string
	// Timeout is the time limit of one check.
	Timeout time.Duration
	// Progress gets each result as soon as the check ends. If Progress is nil, Run shows no progress.
	Progress *Progress
}

// Validate returns an error if an option has a value that is not allowed.
func (o Options) Validate() error {
	switch {
	case o.Elements == 0 || o.Elements > math.MaxInt64/16:
		return fmt.Errorf("the number of elements must lie between 1 and 2^59, not %d", o.Elements)
	case o.Workers < 1:
		return fmt.Errorf("at least one worker is needed, not %d", o.Workers)
	case o.Parallel < 0:
		return fmt.Errorf("the number of checks at the same time must not be negative, as %d is; 0: as many as suit the CPUs", o.Parallel)
	}
	return nil
}

// written returns the pattern that the first process writes into n elements.
func (o Options) written(n uint64) *Pattern { return affine(n, 1, float64(o.Seed)) }

// answered returns the pattern that the other process writes.
func (o Options) answered(n uint64) *Pattern { return affine(n, -1, float64(o.WorkerSeed)) }

// Run runs the chosen checks, if this machine can run them. The report has the result (passed, failed or skipped) of each check that has
// ended. The error is nil unless something outside the checks failed, for example the start of the service.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	report = new(Report)
	if err := o.Validate(); err != nil {
		return report, err
	}
	if o.Self == "" {
		if o.Self, err = os.Executable(); err != nil {
			return report, err
		}
	}
	began := time.Now()
	defer func() { report.Seconds = time.Since(began).Seconds() }()
	dir, err := os.MkdirTemp("", "poolbridge-verify-")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	served, err := child.Serve(ctx, o.Self, filepath.Join(dir, "run", "poolsvc.sock"))
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, served.Stop()) }()
	s := &stage{ctx: ctx, options: o, socket: served.Socket, dir: dir, idle: make(map[string][]*worker)}
	if s.client, err = served.Dial(ctx); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, s.close(), s.client.Close()) }()
	r, err := s.audition()
	if err != nil {
		return report, err
	}
	checks, err := o.choose(r)
	if err != nil {
		return report, err
	}
	report.Machine, report.Checks = Describe(), []Result{}
	report.Machine.Python, report.Machine.Packages, report.Machine.Native = r.Python, r.Packages, r.Native
	return report, s.runAll(checks, report)
}

// runAll runs the checks, several at the same time. Afterwards it runs the checks of the scenario `order`, one after another: they measure
// times, and while a process holds a kernel, any driver call of the same process may wait.
func (s *stage) runAll(checks []chosen, report *Report) error {
	unavailable := make(map[mempool.Kind]error)
	for _, c := range checks {
		if _, known := unavailable[c.kind]; !known {
			unavailable[c.kind] = s.probe(c.kind)
		}
	}
	possible := 0
	for _, c := range checks {
		if unavailable[c.kind] == nil {
			possible++
		}
	}
	defer s.options.Progress.end()
	results := make([]Result, len(checks))
	var done atomic.Int64
	run := func(i int) {
		c := checks[i]
		if unavailable[c.kind] == nil {
			s.options.Progress.begin(int(done.Load()), possible, string(c.kind), c.name())
			defer done.Add(1)
		}
		results[i] = s.run(c, unavailable[c.kind])
		s.options.Progress.result(results[i])
	}
	var beside errgroup.Group
	beside.SetLimit(s.hands())
	for i, c := range checks {
		if c.scenario != order && s.ctx.Err() == nil {
			beside.Go(func() error { run(i); return nil })
		}
	}
	_ = beside.Wait() // run returns no errors
	for i, c := range checks {
		if c.scenario == order && s.ctx.Err() == nil {
			run(i)
		}
	}
	for _, r := range results {
		if r.Status != "" {
			report.add(r)
		}
	}
	return context.Cause(s.ctx)
}

// run runs one check, and stops it at its time limit.
func (s *stage) run(c chosen, unavailable error) Result {
	began := time.Now()
	on := &scene{stage: s, kind: c.kind, consumer: c.consumer}
	err := unavailable
	if err == nil {
		ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
		defer cancel()
		if err = c.run(ctx, on); err != nil && ctx.Err() != nil {
			err = fmt.Errorf("not done within %v: %w", s.options.Timeout, err)
		}
		on.end()
	}
	r := Result{Name: c.name(), Kind: string(c.kind), Scenario: string(c.scenario), Consumer: c.consumer, Direction: c.direction(),
		Seconds: time.Since(began).Seconds()}
	if r.Status, r.Reason = resultOf(err); r.Status == Passed {
		r.Note = on.note
	}
	return r
}

// probe returns nil if checks of the kind can run here. If the machine lacks the kind, the error is a skip.
func (s *stage) probe(kind mempool.Kind) error {
	err := kind.Probe((&scene{stage: s, kind: kind}).device())
	if errors.Is(err, mempool.ErrUnavailable) {
		return skipf("%v", err)
	}
	return err
}

// hands returns how many checks may run at the same time. Free memory of the GPU limits this number, because a check uses up to four
// processes and each process has a context on the GPU.
func (s *stage) hands() int {
	wanted := s.options.Parallel
	if wanted == 0 {
		wanted = max(1, min(mostByDefault, runtime.NumCPU()/4))
	}
	if wanted == 1 || mempool.Device.Probe(s.options.Device) != nil {
		return wanted
	}
	g, err := s.gpus.named(s.options.Device)
	if err != nil {
		return 1 // the checks report the error
	}
	free, _, err := g.context.MemInfo()
	if err != nil {
		return 1
	}
	return max(1, min(wanted, int(free/gpuBytesBeside)))
}
