package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

const (
	// mostAhead is the greatest number of started workers that wait for their check.
	mostAhead = 10
	// gpuBytesBeside is the free memory of the GPU that each check needs if checks run at the same time.
	gpuBytesBeside = 2 << 30
	// mostByDefault is the greatest number of checks that run at the same time if Options.Parallel is 0. If more checks run, they wait for
	// each other's locks in the driver, and all checks become slower.
	mostByDefault = 4
	// perWorker is a number of checks: for each perWorker checks of a library, the crew gets one more worker. A worker takes seconds to
	// start.
	perWorker = 32
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

// written returns the pattern that Go writes.
func (o Options) written() *work.Pattern { return work.Affine(1, float64(o.Seed)) }

// answered returns the pattern that a worker writes.
func (o Options) answered() *work.Pattern { return work.Affine(-1, float64(o.WorkerSeed)) }

// chosen is a check that will run.
type chosen struct {
	check
	kind mempool.Kind
	name string
}

// choose returns the checks that the options ask for.
func (o Options) choose(p *roster) ([]chosen, error) {
	list, err := o.matching(o.Only, p)
	if err != nil || len(list) > 0 {
		return list, err
	}
	const names = "a check's name is KIND/SCENARIO/CHECK/CONSUMER, such as host/transfer/round-trip/numpy"
	for _, text := range o.Only { // the table leaves out the kind, so try the text with any kind
		withKind := "*/" + text
		if list, err = o.matching([]string{withKind}, p); err == nil && len(list) > 0 {
			return nil, fmt.Errorf("no check matches %q: %s; did you mean '%s'?", o.Only, names, withKind)
		}
	}
	return nil, fmt.Errorf("no check matches %q: %s, and globs of it are 'host/*' or '*/round-trip/*'", o.Only, names)
}

// matching returns the checks that match one of the globs, or all checks if there are no globs.
func (o Options) matching(globs []string, p *roster) ([]chosen, error) {
	var only []*regexp.Regexp
	for _, text := range globs {
		g, err := glob(text)
		if err != nil {
			return nil, err
		}
		only = append(only, g)
	}
	kinds := o.Kinds
	if len(kinds) == 0 {
		kinds = mempool.Kinds()
	}
	var list []chosen
	for _, kind := range kinds {
		for _, c := range checksOf(kind, o, p) {
			one := chosen{c, kind, fmt.Sprintf("%s/%s/%s", c.scenario, c.name, c.consumer)}
			wanted := len(only) == 0
			for _, g := range only {
				wanted = wanted || g.MatchString(string(kind)+"/"+one.name)
			}
			if wanted {
				list = append(list, one)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b chosen) int { return lastly(a) - lastly(b) })
	return list, nil
}

// lastly returns 1 for the checks of the scenario order, which run last, and 0 for all other checks.
func lastly(c chosen) int {
	if c.scenario == order {
		return 1
	}
	return 0
}

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
	err = onStage(ctx, o, func(s *stage) error {
		var p *roster
		unavailable := make(map[mempool.Kind]error)
		var g errgroup.Group
		g.Go(func() (err error) {
			p, err = s.audition()
			return err
		})
		g.Go(func() error {
			for _, kind := range mempool.Kinds() {
				unavailable[kind] = (&scene{stage: s, kind: kind}).probe()
			}
			return nil
		})
		if err := g.Wait(); err != nil {
			return err
		}
		checks, err := o.choose(p)
		if err != nil {
			return err
		}
		report.Machine, report.Checks = Describe(), []Result{}
		report.Machine.Python, report.Machine.Packages, report.Machine.Native = p.Python, p.Packages, p.Native
		return s.runAll(checks, unavailable, report)
	})
	report.Seconds = time.Since(began).Seconds()
	return report, err
}

// onStage starts a service for the checks, calls play, and then stops the service.
func onStage(ctx context.Context, o Options, play func(*stage) error) (err error) {
	dir, err := os.MkdirTemp("", "poolbridge-verify-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "run", "poolsvc.sock")
	served, err := serve(ctx, o.Self, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, served.stop()) }()
	client, err := served.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	s := &stage{ctx: ctx, options: o, client: client, socket: socket, dir: dir, bench: new(work.Bench)}
	s.crew = &crew{start: s.start, prepare: s.prepare, limit: min(max(2, runtime.NumCPU()), mostAhead)}
	defer func() { err = errors.Join(err, s.close()) }()
	return play(s)
}

// runAll runs the checks. Checks of all scenarios except `order` run first, several at the same time. Then the checks of the scenario
// `order` run, one after another. They run alone because they measure times, and because, while a process holds a kernel, any driver call
// of the same process may wait.
func (s *stage) runAll(checks []chosen, unavailable map[mempool.Kind]error, report *Report) error {
	s.options.Progress.lack(wanted(checks, unavailable))
	defer s.options.Progress.end()
	l := &ledger{checks: checks, report: report, progress: s.options.Progress, results: make([]*Result, len(checks))}
	var beside, after []turn
	uses := make(map[string]int)
	for i, c := range checks {
		t := turn{i, s.uses(c)}
		if unavailable[c.kind] == nil {
			uses[t.uses]++
			l.possible++
		}
		if c.scenario == order {
			after = append(after, t)
		} else {
			beside = append(beside, t)
		}
	}
	l.begin()
	hands := s.hands(unavailable)
	room := map[string]int{goConsumer: hands, crowdOf(""): 1, crowdOf(goConsumer): 1}
	for _, c := range checks {
		if room[c.consumer] == 0 {
			room[c.consumer] = 1 + min(uses[c.consumer]/perWorker, hands/4)
		}
	}
	s.crew.begin(s.plan(checks, room, unavailable))
	run := func(t turn) {
		began := time.Now()
		c := checks[t.check]
		on := &scene{stage: s, kind: c.kind, number: t.check}
		err := unavailable[c.kind]
		if err == nil {
			err = errors.Join(on.run(c.check), on.end())
		}
		l.end(t.check, on.note, time.Since(began), err)
	}
	s.each(newTurns(room, beside), hands, run)
	s.crew.awaitPrepared() // so that workers which start do not disturb the measurements
	s.each(newTurns(room, after), 1, run)
	return context.Cause(s.ctx)
}

// each calls the function `run` for each check of t. `hands` limits how many checks run at the same time.
func (s *stage) each(t *turns, hands int, run func(turn)) {
	var all sync.WaitGroup
	for range hands {
		all.Go(func() {
			for {
				next, ok := t.next(s.ctx)
				if !ok {
					return
				}
				run(next)
				t.done(next)
			}
		})
	}
	all.Wait()
}

// uses returns the name of the workers that the check shares with other checks.
func (s *stage) uses(c chosen) string {
	if c.check.name == s.options.manyName() {
		return crowdOf(c.consumer)
	}
	return c.consumer
}

// hands returns how many checks may run at the same time. Free memory of the GPU limits this number, because a check uses up to four
// processes and each process has a context on the GPU.
func (s *stage) hands(unavailable map[mempool.Kind]error) int {
	wanted := s.options.Parallel
	if wanted == 0 {
		wanted = max(1, min(mostByDefault, runtime.NumCPU()/4))
	}
	if wanted == 1 || unavailable[mempool.Device] != nil {
		return wanted
	}
	g, err := s.bench.OnDevice(s.options.Device)
	if err != nil {
		return 1 // the checks report the error
	}
	free, _, err := g.Context.MemInfo()
	if err != nil {
		return 1
	}
	return max(1, min(wanted, int(free/gpuBytesBeside)))
}

// wanted returns the kinds of memory that the checks use. In the result, the value of a kind is nil if the checks of this kind can run.
// Otherwise the value is the error that prevents these checks.
func wanted(checks []chosen, unavailable map[mempool.Kind]error) map[mempool.Kind]error {
	kinds := make(map[mempool.Kind]error)
	for _, c := range checks {
		kinds[c.kind] = unavailable[c.kind]
	}
	return kinds
}

// plan lists the workers that the checks need and that are not idle already, in the order of the checks. For each name of workers, `room`
// is how many of these workers the checks may use at the same time.
func (s *stage) plan(checks []chosen, room map[string]int, unavailable map[mempool.Kind]error) (planned []booking) {
	known := make(map[string]bool)
	for i, c := range checks {
		if unavailable[c.kind] != nil || c.consumer == missingOnes {
			continue
		}
		if uses := s.uses(c); !known[uses] && (uses != c.consumer || c.alone == nil) {
			known[uses] = true
			n := room[uses] - len(s.crew.idle[uses])
			switch uses {
			case crowdOf(c.consumer):
				n = s.options.Workers
			case goConsumer: // a Go worker starts fast
				n = 1
			}
			planned = append(planned, slices.Repeat([]booking{{severalChecks, role{consumer: c.consumer}}}, max(n, 0))...)
		}
		if c.alone != nil {
			if r, err := c.alone(&scene{stage: s, kind: c.kind}); err == nil { // otherwise the check itself reports the error
				planned = append(planned, booking{i, r})
			}
		}
	}
	return planned
}

// probe returns a skip that says why checks of the kind cannot run here, or nil.
func (s *scene) probe() error {
	err := s.kind.Probe(s.device())
	if errors.Is(err, mempool.ErrUnavailable) {
		return skipf("%v", err)
	}
	return err
}

// run runs one check and stops the check at its time limit.
func (s *scene) run(c check) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
	defer cancel()
	err := c.run(ctx, s)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not done within %v: %w", s.options.Timeout, err)
	}
	return err
}
