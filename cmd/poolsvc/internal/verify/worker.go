package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
)

// worker is a process that does tasks. Tasks and answers are JSON objects, one on each line.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
	gone   bool
}

// startWorker starts a worker process. env is added to the environment if it is not empty. The worker is killed when ctx ends.
func startWorker(ctx context.Context, env string, program string, args ...string) (*worker, error) {
	w := &worker{cmd: exec.CommandContext(ctx, program, args...)}
	// Without this variable, JAX would allocate most of the memory of the GPU when it starts, and the other workers would have too
	// little.
	w.cmd.Env = append(os.Environ(), "XLA_PYTHON_CLIENT_PREALLOCATE=false")
	if env != "" {
		w.cmd.Env = append(w.cmd.Env, env)
	}
	w.cmd.Stderr = &w.stderr
	w.cmd.WaitDelay = time.Second
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = json.NewDecoder(out)
	return w, w.cmd.Start()
}

// do lets the worker do a task. If the task failed, the error is a [*work.Failure]. If the worker did not answer, the error says what
// happened to the worker.
func (w *worker) do(ctx context.Context, t work.Task) (*work.Answer, error) {
	var a work.Answer
	if err := w.exchange(ctx, t, &a); err != nil {
		return nil, err
	}
	if a.OK {
		return &a, nil
	}
	if a.Error == nil {
		return nil, fmt.Errorf("the worker failed to do %q, and gave no reason", t.Task)
	}
	return nil, a.Error
}

// exchange sends a task and reads the answer. If the worker does not answer in time, exchange kills the worker.
func (w *worker) exchange(ctx context.Context, t work.Task, answer any) error {
	if w.gone {
		return errors.New("the worker is gone already")
	}
	stop := context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })
	defer stop()
	line, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return w.lost(err)
	}
	if err := w.out.Decode(answer); err != nil {
		return w.lost(err)
	}
	return nil
}

// lost ends the worker, and returns an error that says why the worker did not answer.
func (w *worker) lost(err error) error {
	return fmt.Errorf("the worker is gone (%w): %w: %s", err, w.end(), lastLines(w.stderr.String(), 5))
}

func (w *worker) end() error {
	w.gone = true
	_ = w.in.Close() // the worker ends when its input ends
	return w.cmd.Wait()
}

// stop ends the worker and waits until it has ended. If another call (such as kill) has already ended the worker, stop
// does nothing and returns nil.
func (w *worker) stop() error {
	if w.gone {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](w.end()); ok {
		return fmt.Errorf("the worker ended: %w: %s", exit, lastLines(w.stderr.String(), 5))
	}
	return nil
}

// kill kills the worker without waiting for its task.
func (w *worker) kill() {
	if !w.gone {
		_ = w.cmd.Process.Kill()
		_ = w.end() // the error of a killed process is expected
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
