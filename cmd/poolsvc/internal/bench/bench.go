package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/mempool"
)

// workload is one of the measurements.
type workload struct {
	name string
	run  func(context.Context, *scene) error
}

var workloads []workload

func init() { // in init, because Options uses the names of the workloads
	workloads = []workload{
		{"transfer", transfer},
		{"stream", stream},
		{"copy", copies},
		{"allocate", allocate},
		{"growth", growth},
		{"start-up", startUp},
		{"python-stream", pythonStreams},
	}
}

// ours is the name of poolbridge as the measured system. benchmarks/run.py adds the results of other systems.
const ours = "poolbridge"

// scene has what the measurements of one kind of memory share.
type scene struct {
	Options
	kind     mempool.Kind
	consumer string // the workers' array library
	dir      string
	sockets  int
	channels int
	report   *Report
	round    int
	workload string            // that is being measured
	begin    func(step string) // shows the step on a terminal
}

// add adds the measurements of a round to the report. After the last round, add shows the result.
func (s *scene) add(d Durations, workload string, bytes uint64) {
	one := d.result(workload, string(s.kind), bytes)
	i := slices.IndexFunc(s.report.Results, func(r Result) bool { return r.key() == one.key() })
	if i < 0 {
		i = len(s.report.Results)
		s.report.Results = append(s.report.Results, one)
	}
	r := &s.report.Results[i]
	r.Rounds = append(r.Rounds, Round{P50: one.P50, PerSecond: one.PerSecond})
	rounds, all := r.Rounds, r.all.and(d)
	*r = all.result(workload, string(s.kind), bytes)
	r.Rounds, r.all, r.of = rounds, all, s.workload
	if s.last() {
		r.print(s.Progress)
	}
}

// last reports whether this is the last round. Only this round shows results, because each result is of all rounds.
func (s *scene) last() bool { return s.round == s.Rounds-1 }

func (s *scene) skip(workload, reason string) {
	if !s.last() {
		return
	}
	s.report.Skipped = append(s.report.Skipped, Skipped{Workload: workload, Kind: string(s.kind), System: ours, Reason: reason})
	fmt.Fprintf(s.Progress, "%s  %-8s %s\n", display.Neutral.Render("skipped"), s.kind, reason)
}

// newSocket returns a new path for the socket of a service.
func (s *scene) newSocket() string {
	s.sockets++
	return filepath.Join(s.dir, strconv.Itoa(s.sockets), "poolsvc.sock")
}

// poolSpec returns the spec of a pool that can hold buffers which have `room` bytes in total.
func (s *scene) poolSpec(room uint64) mempool.PoolSpec {
	spec := mempool.PoolSpec{Name: poolName, Kind: s.kind, MaxBytes: room*9/8 + 32<<20} // the pool rounds blocks up to size classes
	if s.kind != mempool.Host {
		spec.Device = s.Device
	}
	return spec
}

// poolName is the name of the pool in a measured service.
const poolName = "bench"

// Run measures everything that this machine can measure. It returns an error if a measurement failed.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "poolbridge-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	report = &Report{Machine: verify.Describe(), Version: program.Version(), Results: []Result{}, Service: []Footprint{}, Skipped: []Skipped{}}
	probed, err := probe(ctx, o.Python)
	if err != nil {
		return nil, err
	}
	report.Machine.Python, report.Machine.Packages, report.Machine.Native = probed.Python, probed.Packages, probed.Native
	if report.Load, err = load(); err != nil {
		return nil, err
	}
	if o.Before != nil {
		if err := refuse(o.Before.file, o.Before.Machine, report.Machine); err != nil {
			return nil, err
		}
	}
	printLoad(o.Progress, report.Load, report.Machine.CPUs)
	printPython(o.Progress, report.Machine)
	printHead(o.Progress)
	defer o.Progress.Done()
	o.Time /= time.Duration(o.Rounds)
	if err := o.measure(ctx, filepath.Join(dir, "first"), probed, report); err != nil || o.Before == nil {
		return report, err
	}
	report.Check = compare(o.Before, report)
	for again := range 2 {
		if len(report.Check.Changed) == 0 {
			break
		}
		fmt.Fprintln(o.Progress, "What seems to have changed is measured again:")
		o.Kinds, o.Only = nil, nil
		for _, one := range report.Check.Changed {
			o.Kinds, o.Only = append(o.Kinds, mempool.Kind(one.Kind)), append(o.Only, one.of)
		}
		slices.Sort(o.Kinds)
		o.Kinds = slices.Compact(o.Kinds)
		more := &Report{}
		if err := o.measure(ctx, filepath.Join(dir, "again", strconv.Itoa(again)), probed, more); err != nil {
			return report, err
		}
		report.Check.confirm(compare(o.Before, more))
	}
	return report, nil
}

// measure measures everything in rounds.
func (o Options) measure(ctx context.Context, dir string, probed *verify.Roster, report *Report) error {
	done, steps := 0, o.Rounds*len(o.kinds())*len(o.steps())
	for round := range o.Rounds {
		for _, kind := range o.kinds() {
			s := &scene{begin: func(what string) {
				o.Progress.Step(done, steps, string(kind)+"  "+what)
				done++
			}, Options: o, kind: kind, dir: filepath.Join(dir, string(kind), strconv.Itoa(round)), report: report, round: round}
			if err := s.measure(ctx, probed); err != nil {
				return fmt.Errorf("kind %s: %w", kind, err)
			}
		}
	}
	if len(report.Results) == 0 {
		return report.empty()
	}
	return nil
}

// steps returns the names of the steps that each kind of memory goes through.
func (o Options) steps() (names []string) {
	for _, w := range workloads {
		if o.wants(w.name) {
			names = append(names, w.name)
		}
	}
	return names
}

// measure runs the workloads of one kind of memory, if this machine has the kind.
func (s *scene) measure(ctx context.Context, p *verify.Roster) error {
	device := s.Device
	if s.kind == mempool.Host {
		device = ""
	}
	err := s.kind.Probe(device)
	consumers := p.Consumers[string(s.kind)]
	switch {
	case errors.Is(err, mempool.ErrUnavailable):
		s.skip("", err.Error())
		return nil
	case err != nil:
		return err
	case len(consumers) == 0:
		s.skip("", fmt.Sprintf("%s has no package that can use this kind: %s", s.Python, p.Missing[string(s.kind)]))
		return nil
	}
	s.consumer = consumers[0]
	for _, w := range workloads {
		if !slices.Contains(s.steps(), w.name) {
			continue
		}
		s.workload = w.name
		s.begin(w.name)
		if err := w.run(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}
