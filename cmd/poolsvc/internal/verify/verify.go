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
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// mostAhead is the greatest number of workers that wait for their check.
const mostAhead = 10

// Options says what to check, and how.
type Options struct {
	// Self is this program, which contains the service and the Go workers; empty for the running one.
	Self string
	// Python is the interpreter of the Python workers. It must have the poolbridge package.
	Python string
	// Elements is the number of elements of a buffer, of float32.
	Elements uint64
	// Device is the GPU to use, an ordinal or a UUID.
	Device string
	// Seed: Go writes i + Seed. WorkerSeed: the worker writes WorkerSeed − i.
	Seed, WorkerSeed int64
	// Workers is how many workers check one buffer at the same time.
	Workers int
	// LargeBytes is the size of the large check on a GPU; 0 leaves it out.
	LargeBytes uint64
	// Kinds are the kinds of memory to check; empty for all.
	Kinds []mempool.Kind
	// Only has globs of the checks to run, in the form kind/scenario/check/consumer; empty for all.
	Only []string
	// Timeout is the time limit of one check.
	Timeout time.Duration
	// Progress gets each result when it is there; nil for none.
	Progress *Progress
}

// Validate returns an error if the options are not valid.
func (o Options) Validate() error {
	switch {
	case o.Elements == 0 || o.Elements > math.MaxInt64/16:
		return fmt.Errorf("the number of elements must lie between 1 and 2^59, not %d", o.Elements)
	case o.Workers < 1:
		return fmt.Errorf("at least one worker is needed, not %d", o.Workers)
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

// choose returns the checks to run.
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
	return list, nil
}

// Run runs every check that can run here. It returns an error only if the checks could not be run at all.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Self == "" {
		if o.Self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p, err := probe(ctx, o.Python)
	if err != nil {
		return nil, err
	}
	checks, err := o.choose(p)
	if err != nil {
		return nil, err
	}
	report = &Report{Machine: Describe(), Checks: []Result{}}
	report.Machine.Python, report.Machine.Packages, report.Machine.Native = p.Python, p.Packages, p.Native
	err = onStage(ctx, o, func(s *stage) error { return s.runAll(checks, report) })
	return report, err
}

// onStage starts a service for the checks, and stops it afterwards.
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
	s := &stage{ctx: ctx, options: o, client: client, socket: socket, dir: dir, bench: new(work.Bench),
		workers: make(map[string]*worker), many: make(map[bool][]*worker)}
	s.crew = &crew{start: s.start, prepare: s.prepare, limit: min(max(2, runtime.NumCPU()), mostAhead)}
	defer func() { err = errors.Join(err, s.close()) }()
	return play(s)
}

// runAll runs the checks one after another.
func (s *stage) runAll(checks []chosen, report *Report) error {
	unavailable := make(map[mempool.Kind]error)
	for _, kind := range mempool.Kinds() {
		unavailable[kind] = (&scene{stage: s, kind: kind}).probe()
	}
	s.crew.planned = s.plan(checks, unavailable)
	s.options.Progress.lack(wanted(checks, unavailable))
	defer s.options.Progress.end()
	possible, done := 0, 0
	for _, c := range checks {
		if unavailable[c.kind] == nil {
			possible++
		}
	}
	for i, c := range checks {
		on := &scene{stage: s, kind: c.kind}
		if err := s.crew.begin(i); err != nil {
			return err
		}
		if c.scenario == order {
			s.crew.awaitPrepared() // so that workers which start do not disturb the measurements
		}
		start := time.Now()
		err := unavailable[c.kind]
		if err == nil {
			s.options.Progress.begin(done, possible, string(c.kind), c.name)
			err = on.run(c.check)
			done++
		}
		r := Result{Name: c.name, Kind: string(c.kind), Scenario: string(c.scenario), Consumer: c.consumer, Direction: c.direction(),
			Note: on.note, Seconds: time.Since(start).Seconds()}
		if r.Status, r.Reason = resultOf(err); r.Status != Passed {
			r.Note = ""
		}
		report.add(r)
		s.options.Progress.result(r)
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
	}
	return nil
}

// wanted are the kinds that checks are to run on, with why they cannot.
func wanted(checks []chosen, unavailable map[mempool.Kind]error) map[mempool.Kind]error {
	kinds := make(map[mempool.Kind]error)
	for _, c := range checks {
		kinds[c.kind] = unavailable[c.kind]
	}
	return kinds
}

// plan lists the workers that checks will need, in the order of the checks.
func (s *stage) plan(checks []chosen, unavailable map[mempool.Kind]error) (planned []booking) {
	var known []string // consumers whose worker several checks share
	many := make(map[bool]bool)
	for i, c := range checks {
		if unavailable[c.kind] != nil {
			continue
		}
		inGo := c.consumer == goConsumer
		switch {
		case c.check.name == s.options.manyName() && !many[inGo]:
			many[inGo] = true
			planned = append(planned, slices.Repeat([]booking{{i, role{consumer: c.consumer}}}, s.options.Workers)...)
		case c.alone == nil && !slices.Contains(known, c.consumer):
			known = append(known, c.consumer)
			planned = append(planned, booking{i, role{consumer: c.consumer}})
		case c.alone != nil:
			if r, err := c.alone(&scene{stage: s, kind: c.kind}); err == nil { // otherwise the check itself reports the error
				planned = append(planned, booking{i, r})
			}
		}
	}
	return planned
}

// probe returns why the checks of the kind cannot run here, as a skip, or nil.
func (s *scene) probe() error {
	err := s.kind.Probe(s.device())
	if errors.Is(err, mempool.ErrUnavailable) {
		return skipf("%v", err)
	}
	return err
}

// run runs one check with its time limit.
func (s *scene) run(c check) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.options.Timeout)
	defer cancel()
	err := c.run(ctx, s)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not done within %v: %w", s.options.Timeout, err)
	}
	return err
}
