package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// stage is what all checks share: this process's session with the service, which is a process of its own, and the workers that go
// from check to check.
type stage struct {
	ctx     context.Context // of the whole run
	options Options
	client  *bridge.Client
	socket  string
	dir     string // for files
	bench   *work.Bench
	workers map[string]*worker
	many    map[bool][]*worker // that check one buffer at once; true: in Go
	crew    *crew
	leaving []*bridge.Pool // destroyed by checks that are over
	names   int
}

// scene is a stage for the checks of one kind.
type scene struct {
	*stage
	kind mempool.Kind
	// note is what a check has to say besides that it passed.
	note string
}

// uniqueName is a name that no other check uses.
func (s *scene) uniqueName(what string) string {
	s.names++
	return "verify " + string(s.kind) + " " + what + " " + strconv.Itoa(s.names)
}

// device is the GPU to use, "" for memory that is on none.
func (s *scene) device() string {
	if !onGPU(s.kind) {
		return ""
	}
	return s.options.Device
}

// kernels is a file with the pattern kernels, for workers in Python.
func (s *scene) kernels() (path string, err error) {
	path = filepath.Join(s.dir, "kernels.ptx")
	return path, os.WriteFile(path, pattern.PTX(), 0o600)
}

// start starts a worker for a role.
func (s *stage) start(r role) (*worker, error) {
	program, args := s.options.Python, []string{"-m", "poolbridge.worker"}
	if r.consumer == goConsumer {
		program, args = s.options.Self, []string{"worker"}
	}
	args = append(args, "--socket", s.socket)
	if r.flag != "" {
		args = append(args, r.flag, r.value)
	}
	w, err := startWorker(s.ctx, r.env, program, args...)
	if err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return w, nil
}

// prepare has a worker import what its role needs.
func (s *stage) prepare(w *worker, r role) error {
	_, err := w.do(s.ctx, work.Task{Task: "prepare", Consumer: r.consumer})
	return err
}

// worker is the worker that uses a library. It is the same for all checks, as long as it lives.
func (s *scene) worker(consumer string) (*worker, error) {
	return s.keep(consumer, role{consumer: consumer})
}

// keep is a worker that goes from check to check, by a name.
func (s *scene) keep(name string, r role) (*worker, error) {
	if w := s.workers[name]; w != nil && !w.gone {
		return w, nil
	}
	w, err := s.crew.take(r)
	if err == nil {
		s.workers[name] = w
	}
	return w, err
}

// close ends the workers.
func (s *stage) close() error {
	errs := []error{s.crew.close()}
	for name, w := range s.workers {
		if err := w.stop(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, w := range slices.Concat(s.many[true], s.many[false]) {
		errs = append(errs, w.stop())
	}
	return errors.Join(append(errs, s.bench.Close())...)
}

// check has a worker carry out a task that compares memory, and judges the answer.
func (w *worker) check(ctx context.Context, t work.Task) (*work.Answer, error) {
	if t.Task == "" {
		t.Task = "check"
	}
	t.Timeout = 60
	a, err := w.do(ctx, t)
	switch {
	case err != nil:
		return nil, err
	case a.Mismatches > 0:
		return a, fmt.Errorf("the worker found %d elements that differ: %s", a.Mismatches, strings.Join(a.First, ", "))
	case t.Elements > 0 && a.Elements != t.Elements:
		return a, fmt.Errorf("the worker saw %d elements, not %d", a.Elements, t.Elements)
	case t.Task == "check" && !a.Mapped:
		return a, errors.New("the worker's array is not the shared memory: it was copied")
	case a.Written != (t.Then != nil || t.Transform != nil):
		return a, fmt.Errorf("the worker wrote: %v, and should have: %v", a.Written, !a.Written)
	}
	return a, nil
}
