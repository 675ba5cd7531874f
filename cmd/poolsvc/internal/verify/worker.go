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
)

// worker is a process that does tasks. Tasks and answers are JSON objects, one on each line.
type worker struct {
	consumer string
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *json.Decoder
	stderr   bytes.Buffer
	gone     bool
}

// start starts a worker that uses the library `consumer`, with more arguments and more environment variables. The worker is killed when
// the run ends.
func (s *stage) start(consumer string, env []string, args ...string) (*worker, error) {
	program, first := s.options.Python, []string{"-m", "poolbridge.worker", "--library", consumer}
	if consumer == goConsumer {
		program, first = s.options.Self, []string{"worker"}
	}
	w := &worker{consumer: consumer, cmd: exec.CommandContext(s.ctx, program, append(append(first, "--socket", s.socket), args...)...)}
	// Without this variable, JAX would allocate most of the memory of the GPU when it starts, and the other workers would have too little.
	w.cmd.Env = append(append(os.Environ(), "XLA_PYTHON_CLIENT_PREALLOCATE=false"), env...)
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
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return w, nil
}

// do lets the worker do a task. If `answer` is not nil, do stores the task's answer there. If the task failed, the error is a [*Failure].
// If the worker did not answer, the error says what happened to the worker.
func (w *worker) do(ctx context.Context, t task, answer any) error {
	return w.exchange(ctx, assignment{nameOf(t), t}, answer)
}

// exchange sends a task and reads the answer. If the worker does not answer in time, exchange kills the worker.
func (w *worker) exchange(ctx context.Context, a assignment, answer any) error {
	if w.gone {
		return errors.New("the worker is gone already")
	}
	stop := context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() })
	defer stop()
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return w.lost(err)
	}
	r := reply{Answer: answer}
	if err := w.out.Decode(&r); err != nil {
		return w.lost(err)
	}
	if r.Error != nil {
		return r.Error
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

// stop ends the worker, if it has not ended, and returns an error if the worker did not end normally.
func (w *worker) stop() error {
	if w.gone {
		return nil
	}
	if err := w.end(); err != nil {
		return fmt.Errorf("the worker for %s ended: %w: %s", w.consumer, err, lastLines(w.stderr.String(), 5))
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
