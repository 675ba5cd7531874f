package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

// dialLimit is how long the service may take to begin to listen.
const dialLimit = 30 * time.Second

// served is the service that the checks use. The service is a separate process, as in real use, because the driver
// cannot open some kinds of memory in the process that made the memory.
type served struct {
	cmd    *exec.Cmd
	socket string
	stderr bytes.Buffer
	ended  chan struct{} // closed when the process has ended; err says how it ended
	err    error
}

// serve starts a service on a socket. The service is killed when ctx ends.
func serve(ctx context.Context, program, socket string) (*served, error) {
	s := &served{cmd: exec.CommandContext(ctx, program, "serve", "--socket", socket), socket: socket, ended: make(chan struct{})}
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // the kernel ends the service if verify is killed
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the service: %w", err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// dial waits until the service listens, and connects to the service.
func (s *served) dial(ctx context.Context) (*bridge.Client, error) {
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
	return bridge.Dialer{Wait: true}.Dial(ctx, s.socket)
}

// stop ends the service, and returns an error if the service did not end normally.
func (s *served) stop() error {
	select {
	case <-s.ended:
		return s.failure("the service ended before the checks did")
	default:
	}
	err := s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.ended
	if s.err != nil {
		return errors.Join(err, s.failure("the service did not end well"))
	}
	return err
}

var errEndedWell = errors.New("exit status 0")

// failure returns an error that says how the service ended. The service must have ended.
func (s *served) failure(what string) error {
	return fmt.Errorf("%s (%w): %s", what, cmp.Or(s.err, errEndedWell), lastLines(s.stderr.String(), 5))
}
