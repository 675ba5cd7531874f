package bench

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

	"golang.org/x/sys/unix"
)

// worker is a Python process that does tasks. Tasks and answers are JSON objects, one on each line. After each step of a task, the worker
// sends one byte through a socket.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
	acks   *os.File // this process's end of the socket
}

// ackLimit is the time after the start of a worker in which all its acknowledgements must arrive.
const ackLimit = 10 * time.Minute

// startWorker starts a worker that uses the service at socket.
func startWorker(ctx context.Context, python, socket string) (*worker, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true) // so that Go's poller can wait for the socket
	}
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "acknowledgements")
	defer theirs.Close()
	w := &worker{acks: os.NewFile(uintptr(fds[0]), "acknowledgements"), cmd: exec.CommandContext(ctx, python, "-m", "poolbridge.bench", "--worker", "3", "--socket", socket)}
	err = w.acks.SetReadDeadline(time.Now().Add(ackLimit))
	w.cmd.ExtraFiles = []*os.File{theirs}
	w.cmd.Stderr = &w.stderr
	if err == nil {
		w.in, err = w.cmd.StdinPipe()
	}
	var out io.ReadCloser
	if err == nil {
		out, err = w.cmd.StdoutPipe()
	}
	if err == nil {
		w.out = json.NewDecoder(out)
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s cannot be started: %w", python, err), w.acks.Close())
	}
	return w, nil
}

// begin sends a task to the worker.
func (w *worker) begin(task any) error {
	line, err := json.Marshal(task)
	if err == nil {
		_, err = w.in.Write(append(line, '\n'))
	}
	return err
}

// end reads the answer to the task that begin has sent.
func (w *worker) end(answer any) error {
	var raw json.RawMessage
	if err := w.out.Decode(&raw); err != nil {
		return w.lost(err)
	}
	var status struct {
		OK    bool
		Error struct{ Type, Message string }
	}
	if err := json.Unmarshal(raw, &status); err != nil {
		return fmt.Errorf("the worker answered %s: %w", raw, err)
	}
	if !status.OK {
		return fmt.Errorf("the worker: %s: %s", status.Error.Type, status.Error.Message)
	}
	return json.Unmarshal(raw, answer)
}

// do lets the worker do a task, and reads the answer.
func (w *worker) do(task, answer any) error {
	if err := w.begin(task); err != nil {
		return w.lost(err)
	}
	return w.end(answer)
}

// ack waits for an acknowledgement.
func (w *worker) ack() error {
	var one [1]byte
	_, err := w.acks.Read(one[:])
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the worker was not done within %v", ackLimit)
	case err != nil:
		return w.lost(err)
	case one[0] == 0:
		return errors.New("the worker failed and gave up its task")
	}
	return nil
}

// failed returns err, joined with the worker's error if the worker answered its task with an error.
func (w *worker) failed(err error) error {
	_ = w.in.Close()
	if answer := w.end(new(struct{})); answer != nil {
		return errors.Join(err, answer)
	}
	return err
}

// lost returns an error that says why the worker does not answer.
func (w *worker) lost(err error) error {
	_ = w.in.Close()
	err = errors.Join(err, w.cmd.Wait())
	lines := strings.Split(strings.TrimSpace(w.stderr.String()), "\n")
	return fmt.Errorf("the worker is gone: %w: %s", err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
}

// stop ends the worker.
func (w *worker) stop() error {
	_ = w.in.Close() // the worker ends when its input ends
	err := w.cmd.Wait()
	err = errors.Join(err, w.acks.Close())
	if err != nil {
		return fmt.Errorf("a worker ended badly: %w: %s", err, w.stderr.String())
	}
	return nil
}

// abandon kills the worker, because the worker may wait for ever.
func (w *worker) abandon() error {
	_ = w.cmd.Process.Kill() // Kill fails if the worker has ended
	_ = w.cmd.Wait()         // the worker was killed, or the method `lost` has already reported why it ended
	return w.acks.Close()
}

// probed says what the Python interpreter of the workers has.
type probed struct {
	Python    string              `json:"python"`
	Packages  map[string]string   `json:"packages"`
	Native    bool                `json:"native"`
	Consumers map[string][]string `json:"consumers"`
	Missing   map[string]string   `json:"missing"`
}

func probe(ctx context.Context, python string) (*probed, error) {
	w, err := startWorker(ctx, python, "")
	if err != nil {
		return nil, err
	}
	var p probed
	if err := w.do(map[string]string{"task": "probe"}, &p); err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", python, err)
	}
	return &p, w.stop()
}
