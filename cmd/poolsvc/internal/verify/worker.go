package verify

import (
	"context"
	"os"
	"os/exec"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
)

// worker is a process that does tasks.
type worker struct {
	*child.Process
	consumer string
}

// start starts a worker that uses the library `consumer`, with more arguments and more environment variables. The worker is killed when
// the run ends.
func (s *stage) start(consumer string, env []string, args ...string) (*worker, error) {
	program, first := s.options.Python, []string{"-m", "poolbridge.worker", "--library", consumer}
	if consumer == goConsumer {
		program, first = s.options.Self, []string{"worker"}
	}
	cmd := exec.CommandContext(s.ctx, program, append(append(first, "--socket", s.socket), args...)...)
	// Without the first variable, JAX would allocate most of the memory of the GPU when it starts, and the other workers would have too little.
	cmd.Env = append(append(os.Environ(), "XLA_PYTHON_CLIENT_PREALLOCATE=false", child.SafePath), env...)
	cmd.WaitDelay = time.Second
	p, err := child.Start("the worker for "+consumer, cmd)
	return &worker{p, consumer}, err
}

// do lets the worker do a task. If `answer` is not nil, do stores the task's answer there. If the task failed, the error is a [*Failure].
// If the worker did not answer, the error says what happened to the worker.
func (w *worker) do(ctx context.Context, t task, answer any) error {
	return w.exchange(ctx, assignment{nameOf(t), t}, answer)
}

// exchange sends a task and reads the answer. If the worker does not answer in time, exchange kills the worker.
func (w *worker) exchange(ctx context.Context, a assignment, answer any) error {
	stop := context.AfterFunc(ctx, func() { _ = w.Cmd.Process.Kill() })
	defer stop()
	r := reply{Answer: answer}
	if err := w.Ask(a, &r); err != nil {
		return err
	}
	if r.Error != nil {
		return r.Error
	}
	return nil
}
