package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// Options says what to check.
type Options struct {
	// Python is the workers' interpreter, which has the poolbridge package.
	Python string
	// Elements of the buffer, float32.
	Elements uint64
	// Device is the GPU to use, an ordinal or a UUID.
	Device string
	// Seed: Go writes i + Seed. WorkerSeed: the worker writes WorkerSeed − i.
	Seed, WorkerSeed int64
	// Workers that check one buffer at once.
	Workers int
	// LargeBytes is the size of the large check on a GPU; 0 leaves it out.
	LargeBytes uint64
	// Kinds to check; empty for all.
	Kinds []mempool.Kind
	// Timeout of one check.
	Timeout time.Duration
	// Progress is told each result as it comes; nil for nobody.
	Progress io.Writer
}

// Validate says whether o can be carried out.
func (o Options) Validate() error {
	switch {
	case o.Elements == 0 || o.Elements > math.MaxInt64/16:
		return fmt.Errorf("the number of elements must lie between 1 and 2^59, not %d", o.Elements)
	case o.Workers < 1:
		return fmt.Errorf("at least one worker is needed, not %d", o.Workers)
	}
	return nil
}

// written is what the Go side writes.
func (o Options) written() pattern.Affine { return pattern.Affine{Scale: 1, Offset: float64(o.Seed)} }

// answered is what a worker writes.
func (o Options) answered() pattern.Affine {
	return pattern.Affine{Scale: -1, Offset: float64(o.WorkerSeed)}
}

// scene is what checks of one kind work in.
type scene struct {
	kind    mempool.Kind
	options Options
	session *mempool.Session
	socket  string
	names   int
}

// uniqueName is a name that no other check uses.
func (s *scene) uniqueName(what string) string {
	s.names++
	return "verify " + string(s.kind) + " " + what + " " + strconv.Itoa(s.names)
}

// Run runs every check that can run here. Its error is for what kept the checks from running at all.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p, err := probe(ctx, o.Python)
	if err != nil {
		return nil, err
	}
	report = &Report{Machine: Describe(), Checks: []Result{}}
	report.Machine.Python, report.Machine.Packages = p.Python, p.Packages
	dir, err := os.MkdirTemp("", "poolbridge-verify-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	svc := mempool.NewService(mempool.Config{})
	defer svc.Close()
	socket := filepath.Join(dir, "run", "poolsvc.sock")
	server, err := bridge.Listen(socket, svc, bridge.ServerConfig{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	session, err := svc.OpenSession(mempool.Self(), nil)
	if err != nil {
		return nil, err
	}
	kinds := o.Kinds
	if len(kinds) == 0 {
		kinds = mempool.Kinds()
	}
	for _, kind := range kinds {
		s := &scene{kind: kind, options: o, session: session, socket: socket}
		unavailable := s.probe()
		for _, c := range checksOf(kind, o, p) {
			start := time.Now()
			err := unavailable
			if err == nil {
				err = runCheck(ctx, c, s)
			}
			r := Result{Name: c.name, Kind: string(kind), Seconds: time.Since(start).Seconds()}
			r.Status, r.Reason = resultOf(err)
			report.add(r)
			if o.Progress != nil {
				r.print(o.Progress)
			}
			if ctx.Err() != nil {
				return report, context.Cause(ctx)
			}
		}
	}
	return report, nil
}

// probe says why the kind's checks cannot run here, as a skip.
func (s *scene) probe() error {
	device := s.options.Device
	if s.kind == mempool.Host {
		device = ""
	}
	err := s.kind.Probe(device)
	if errors.Is(err, mempool.ErrUnavailable) {
		return skipf("%v", err)
	}
	return err
}

// runCheck runs one check within its time.
func runCheck(ctx context.Context, c check, s *scene) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	err := c.run(ctx, s)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not done within %v: %w", s.options.Timeout, err)
	}
	return err
}
