package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// stage has what all checks share: the session of this process with the service, and the workers that several checks use. The service is a
// separate process.
type stage struct {
	ctx     context.Context // context of the whole run
	options Options
	client  *bridge.Client
	socket  string
	dir     string // folder for files
	bench   *work.Bench
	crew    *crew
	names   atomic.Int64 // number of names that uniqueName and kernels have made

	mu      sync.Mutex
	leaving []*bridge.Pool // destroyed pools of finished checks; their memory may still be mapped
}

// scene is the stage, with the data of one check.
type scene struct {
	*stage
	kind   mempool.Kind
	number int    // number of the running check
	note   string // a remark of the check
	hired  map[string]hired
}

// hired is a shared worker, with its name in the crew.
type hired struct {
	*worker
	name string
}

// uniqueName returns a name for a pool, buffer or channel that no other check uses.
func (s *scene) uniqueName(what string) string {
	return fmt.Sprintf("verify %s %s %d", s.kind, what, s.names.Add(1))
}

// device returns the GPU to use, or "" for memory on the CPU.
func (s *scene) device() string {
	if !onGPU(s.kind) {
		return ""
	}
	return s.options.Device
}

// kernels writes the pattern kernels to a file for the Python workers, and returns the path of the file.
func (s *scene) kernels() (path string, err error) {
	path = filepath.Join(s.dir, fmt.Sprintf("kernels-%d.ptx", s.names.Add(1)))
	return path, os.WriteFile(path, pattern.PTX(), 0o600)
}

// start starts a worker with a role.
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

// prepare lets a worker import the library of its role.
func (s *stage) prepare(w *worker, r role) error {
	_, err := w.do(s.ctx, work.Task{Task: "prepare", Consumer: r.consumer})
	return err
}

// fresh returns a worker that only this check uses.
func (s *scene) fresh(r role) (*worker, error) { return s.crew.take(booking{s.number, r}) }

// worker returns a shared worker for a library. In one check, each call for the same library returns the same worker, unless the worker has
// ended. Later checks use the worker again.
func (s *scene) worker(consumer string) (*worker, error) {
	return s.engage(consumer, consumer, consumer)
}

// engage returns the shared worker for a part in this check, such as the producer. name is the worker's name in the
// crew.
func (s *scene) engage(part, name, consumer string) (*worker, error) {
	if h := s.hired[part]; h.worker != nil && !h.gone {
		return h.worker, nil
	}
	w, err := s.crew.hire(name, consumer)
	if err != nil {
		return nil, err
	}
	if s.hired == nil {
		s.hired = make(map[string]hired)
	}
	s.hired[part] = hired{w, name}
	return w, nil
}

// end returns the shared workers of this check to the crew, and ends the workers that were started for this check and not used.
func (s *scene) end() error {
	for _, h := range s.hired {
		s.crew.dismiss(h.name, h.worker)
	}
	return s.crew.done(s.number)
}

// close ends all workers and releases the GPUs.
func (s *stage) close() error { return errors.Join(s.crew.close(), s.bench.Close()) }

// check lets a worker do a task that compares memory, and returns an error if the memory differs or the array is a copy.
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
