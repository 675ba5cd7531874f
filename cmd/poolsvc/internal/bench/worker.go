package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// worker is a Python process that does tasks. After each step of a task, the worker sends one byte through a socket.
type worker struct {
	*child.Process
	acks *os.File // this process's end of the socket
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
	w := &worker{acks: os.NewFile(uintptr(fds[0]), "acknowledgements")}
	if err = w.acks.SetReadDeadline(time.Now().Add(ackLimit)); err == nil {
		cmd := exec.CommandContext(ctx, python, "-m", "poolbridge.bench", "--acks", "3", "--socket", socket)
		cmd.Env = append(os.Environ(), child.SafePath)
		cmd.ExtraFiles = []*os.File{theirs}
		w.Process, err = child.Start("a worker", cmd)
	}
	if err != nil {
		return nil, errors.Join(err, w.acks.Close())
	}
	return w, nil
}

// begin sends a task, which has a name and arguments.
func (w *worker) begin(task string, with any) error {
	return w.Send(map[string]any{"task": task, "with": with})
}

// end reads the answer to the task that was sent.
func (w *worker) end(answer any) error {
	r := struct {
		Error  *verify.Failure
		Answer any
	}{Answer: answer}
	if err := w.Receive(&r); err != nil {
		return err
	}
	if r.Error != nil {
		return fmt.Errorf("the worker: %w", r.Error)
	}
	return nil
}

// do lets the worker do a task, and reads the answer.
func (w *worker) do(task string, with, answer any) error {
	if err := w.begin(task, with); err != nil {
		return err
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
		return w.Lost(err)
	case one[0] == 0:
		return errors.New("the worker failed and gave up its task")
	}
	return nil
}

// failed returns err, joined with the worker's error if the worker answered its task with an error.
func (w *worker) failed(err error) error {
	w.CloseInput()
	if answer := w.end(new(struct{})); answer != nil {
		return errors.Join(err, answer)
	}
	return err
}

// stop ends the worker.
func (w *worker) stop() error { return errors.Join(w.Stop(), w.acks.Close()) }

// abandon kills the worker, because the worker may wait for ever.
func (w *worker) abandon() error {
	w.Kill()
	return w.acks.Close()
}

func probe(ctx context.Context, python string) (*verify.Roster, error) {
	w, err := startWorker(ctx, python, "")
	if err != nil {
		return nil, err
	}
	var r verify.Roster
	if err := w.do("probe", nil, &r); err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", python, err)
	}
	return &r, w.stop()
}
