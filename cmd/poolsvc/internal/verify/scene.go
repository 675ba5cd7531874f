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

// stage has what all checks share: this process's session with the service, which is a separate process, and the workers that several
// checks use.
type stage struct {
	ctx     context.Context // context of the whole run
	options Options
	client  *bridge.Client
	socket  string
	dir     string // for files
	bench   *work.Bench
	workers map[string]*worker
	many    map[bool][]*worker // workers that check one buffer at the same time; the key is true for those in Go
	crew    *crew
	leaving []*bridge.Pool // pools that finished checks have destroyed
	names   int
}

// scene is the stage for the checks of one kind of memory.
type scene struct {
	*stage
	kind mempool.Kind
	// note is a remark of the running check.
	note string
}

// uniqueName returns a name that no other check uses.
func (s *scene) uniqueName(what string) string {
	s.names++
	return "verify " + string(s.kind) + " " + what + " " + strconv.Itoa(s.names)
}

// device returns the GPU to use, or "" for memory without a GPU.
func (s *scene) device() string {
	if !onGPU(s.kind) {
		return ""
	}
	return s.options.Device
}

// kernels writes a file with the pattern kernels, for workers in Python, and returns its path.
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

// prepare lets a worker import what its role needs.
func (s *stage) prepare(w *worker, r role) error {
	_, err := w.do(s.ctx, work.Task{Task: "prepare", Consumer: r.consumer})
	return err
}

// worker returns the worker for a library. All checks use the same one while it lives.
func (s *scene) worker(consumer string) (*worker, error) {
	return s.keep(consumer, role{consumer: consumer})
}

// keep returns the worker with a name that several checks use. It starts one if there is none.
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

// check lets a worker do a task that compares memory, and checks the answer.
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
