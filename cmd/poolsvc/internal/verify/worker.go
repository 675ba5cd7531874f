package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// worker is a Python process that carries out tasks: one JSON object a line each way.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
}

// startWorker starts a worker that finds the scene's service.
func (s *scene) startWorker(ctx context.Context) (*worker, error) {
	w, err := startWorker(ctx, s.options.Python, "--socket", s.socket)
	if err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return w, nil
}

func startWorker(ctx context.Context, python string, args ...string) (*worker, error) {
	w := &worker{cmd: exec.CommandContext(ctx, python, append([]string{"-m", "poolbridge.worker"}, args...)...)}
	w.cmd.Stderr = &w.stderr
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

// do has the worker carry out a task and reads its answer.
func (w *worker) do(task, answer any) error {
	line, err := json.Marshal(task)
	if err != nil {
		return err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return w.lost(err)
	}
	var raw json.RawMessage
	if err := w.out.Decode(&raw); err != nil {
		return w.lost(err)
	}
	var status struct {
		OK    bool `json:"ok"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &status); err != nil {
		return fmt.Errorf("the worker answered %s: %w", raw, err)
	}
	if !status.OK {
		return &workerError{Type: status.Error.Type, Message: status.Error.Message}
	}
	return json.Unmarshal(raw, answer)
}

// workerError is an exception in a worker.
type workerError struct{ Type, Message string }

func (e *workerError) Error() string { return e.Type + ": " + e.Message }

// lost explains why a worker does not talk any more.
func (w *worker) lost(err error) error {
	_ = w.in.Close()
	exit := w.cmd.Wait()
	return fmt.Errorf("the worker is gone (%w): %w: %s", err, exit, lastLines(w.stderr.String(), 5))
}

// stop ends the worker and waits for it. A worker that is gone already was reported where it went.
func (w *worker) stop() error {
	_ = w.in.Close() // tells it to end
	err := w.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("the worker ended: %w: %s", exit, lastLines(w.stderr.String(), 5))
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// checkTask has a worker lease a buffer, compare it with a pattern through a consumer's zero-copy array, and then write
// another pattern, if there is one.
type checkTask struct {
	Task     string          `json:"task"`
	Name     string          `json:"name"`
	Consumer string          `json:"consumer"`
	Elements uint64          `json:"elements"`
	Pattern  pattern.Affine  `json:"pattern"`
	Then     *pattern.Affine `json:"then,omitempty"`
	Timeout  float64         `json:"timeout"`
}

// checkAnswer is what a worker saw.
type checkAnswer struct {
	Elements   uint64   `json:"elements"`
	Mapped     bool     `json:"mapped"`
	Mismatches uint64   `json:"mismatches"`
	First      []string `json:"first"`
	Written    bool     `json:"written"`
}

// check has the worker carry out a task and judges the answer.
func (w *worker) check(_ context.Context, t checkTask) error {
	t.Task, t.Timeout = "check", 60
	var a checkAnswer
	if err := w.do(t, &a); err != nil {
		return err
	}
	switch {
	case a.Mismatches > 0:
		return fmt.Errorf("the worker found %d elements that differ from %v: %s", a.Mismatches, t.Pattern, strings.Join(a.First, ", "))
	case a.Elements != t.Elements:
		return fmt.Errorf("the worker saw %d elements, not %d", a.Elements, t.Elements)
	case !a.Mapped:
		return errors.New("the worker's array is not the shared memory: it was copied")
	case a.Written != (t.Then != nil):
		return fmt.Errorf("the worker wrote its pattern: %v, and should have: %v", a.Written, t.Then != nil)
	}
	return nil
}

// Probe is what the workers' interpreter has.
type Probe struct {
	Python   string            `json:"python"`
	Packages map[string]string `json:"packages"`
	// Consumers are the libraries that can use memory of each kind.
	Consumers map[string][]string `json:"consumers"`
	// Missing says why others cannot.
	Missing map[string]string `json:"missing"`
}

func probe(ctx context.Context, python string) (*Probe, error) {
	w, err := startWorker(ctx, python)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", python, err)
	}
	var p Probe
	if err = w.do(map[string]string{"task": "probe"}, &p); err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", python, err)
	}
	return &p, w.stop()
}

func (p *Probe) consumersOf(kind mempool.Kind) []string { return p.Consumers[string(kind)] }

func (p *Probe) missing(kind mempool.Kind) string { return p.Missing[string(kind)] }
