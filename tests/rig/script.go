package rig

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Script is a Python program in a separate process. The test and the program exchange lines.
type Script struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	err   lockedBuffer
	ended bool
}

// Start starts a program from its text, with arguments. If the program still runs when the test ends, Start's cleanup
// kills the program.
func (p *Interpreter) Start(t testing.TB, text string, args ...string) *Script {
	t.Helper()
	s := &Script{cmd: exec.Command(p.Path, append([]string{"-u", "-X", "faulthandler", "-c", p.first + text}, args...)...)}
	s.cmd.SysProcAttr = p.where
	s.cmd.Stderr = &s.err
	var err error
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewScanner(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		if !s.ended {
			s.Kill(t)
		}
	})
	return s
}

// Line returns the next line that the program prints. If the program prints no line for a minute, Line ends the program, and the test fails
// with the stack of each thread of the program.
func (s *Script) Line(t testing.TB) string {
	t.Helper()
	abort := time.AfterFunc(patience, func() { _ = s.cmd.Process.Signal(syscall.SIGABRT) }) // Python then prints the stacks of its threads
	kill := time.AfterFunc(patience+5*time.Second, func() { _ = s.cmd.Process.Kill() })     // a namespace's first process survives SIGABRT
	defer abort.Stop()
	defer kill.Stop()
	require.True(t, s.out.Scan(), "the program ended: %s", &s.err)
	return s.out.Text()
}

// Say sends a line to the program.
func (s *Script) Say(t testing.TB, line string) {
	t.Helper()
	_, err := io.WriteString(s.in, line+"\n")
	require.NoError(t, err, "%s", &s.err)
}

// Died waits until the program has ended by itself, and returns how. Its input is `line`, again and again. If it still runs after a minute,
// Died aborts it.
func (s *Script) Died(line string) error {
	abort := time.AfterFunc(patience, func() { _ = s.cmd.Process.Signal(syscall.SIGABRT) })
	defer abort.Stop()
	for s.ended = true; ; {
		if _, err := io.WriteString(s.in, line+"\n"); err != nil {
			return s.cmd.Wait()
		}
	}
}

// Kill ends the program with SIGKILL, waits until it has ended, and returns the lines that the test had not read.
func (s *Script) Kill(t testing.TB) (rest []string) {
	t.Helper()
	s.ended = true
	require.NoError(t, s.cmd.Process.Kill())
	for s.out.Scan() {
		rest = append(rest, s.out.Text())
	}
	_ = s.cmd.Wait() // the error says that the program was killed
	return rest
}

// End closes the program's input, waits until the program has ended without an error, and returns the rest of its output.
func (s *Script) End(t testing.TB) string {
	t.Helper()
	require.NoError(t, s.in.Close())
	var rest []string
	for s.out.Scan() {
		rest = append(rest, s.out.Text())
	}
	s.ended = true
	require.NoError(t, s.cmd.Wait(), "%s", &s.err)
	return strings.Join(rest, "\n")
}
