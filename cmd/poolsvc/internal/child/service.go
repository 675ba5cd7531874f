package child

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

// dialLimit is how long the service may take to begin to listen.
const dialLimit = 30 * time.Second

// endLimit is how long the service may take to end after the context of Serve has ended.
var endLimit = 10 * time.Second // a variable for the tests

// Service is a service in a process of its own, as in real use. The driver cannot open some kinds of memory in the process that made the
// memory.
type Service struct {
	Socket string
	Guard  int // the guard of the service instead of the process that was started, which was killed
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{} // closed when the process has ended, and each process that it started; err says how it ended
	err    error
}

// Serve starts a service on a socket, with more arguments. The service ends when ctx ends. It has a guard only if the arguments say so:
// otherwise a service that dies would go unnoticed.
func Serve(ctx context.Context, program, socket string, args ...string) (*Service, error) {
	s := &Service{cmd: exec.CommandContext(ctx, program, append([]string{"serve", "--guard=false", "--socket", socket}, args...)...), Socket: socket, ended: make(chan struct{})}
	stderr, writer, err := os.Pipe() // closed at its other end when the last process of the service has ended, also after its guard was killed
	if err != nil {
		return nil, fmt.Errorf("starting the service: %w", err)
	}
	defer writer.Close()
	s.cmd.Stderr = writer
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) } // a guard that is killed leaves its service behind
	s.cmd.WaitDelay = endLimit                                                   // then it is killed
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}         // the kernel ends the service if this process is killed
	if err := s.cmd.Start(); err != nil {
		stderr.Close()
		return nil, fmt.Errorf("starting the service: %w", err)
	}
	limit := endLimit + time.Second
	context.AfterFunc(ctx, func() { stderr.SetReadDeadline(time.Now().Add(limit)) })
	go func() {
		defer close(s.ended)
		defer stderr.Close()
		_, _ = io.Copy(&s.stderr, stderr) // it ends at the deadline at the latest
		s.err = s.cmd.Wait()
	}()
	return s, nil
}

// PID returns the id of the process.
func (s *Service) PID() int { return s.cmd.Process.Pid }

// KillGuarded kills the process that the guard runs; the service was started with --guard, and has answered.
func (s *Service) KillGuarded() error {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.PID()))
	for _, list := range lists {
		var pid int
		text, failed := os.ReadFile(list) // of each thread; the thread may have ended
		if _, none := fmt.Sscan(string(text), &pid); failed == nil && none == nil {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return errors.Join(err, errors.New("the guard has no child process: was the service started with --guard?"))
}

// Dial waits until the service listens, and connects to the service.
func (s *Service) Dial(ctx context.Context) (*bridge.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	go func() {
		select {
		case <-s.ended:
			give(s.failure("the service did not start"))
		case <-ctx.Done():
		}
	}()
	return bridge.Dialer{Wait: true}.Dial(ctx, s.Socket)
}

// Stop ends the service, and returns an error if the service did not end normally.
func (s *Service) Stop() error {
	select {
	case <-s.ended:
		return s.failure("the service ended too early")
	default:
	}
	err := syscall.Kill(cmp.Or(s.Guard, s.PID()), syscall.SIGTERM)
	<-s.ended
	if s.err != nil && s.Guard == 0 {
		return errors.Join(err, s.failure("the service did not end well"))
	}
	return err
}

var errEndedWell = errors.New("exit status 0")

// failure returns an error that says how the service ended. The service must have ended.
func (s *Service) failure(what string) error {
	return fmt.Errorf("%s (%w): %s", what, cmp.Or(s.err, errEndedWell), lastLines(s.stderr.String()))
}
