// Package child runs the processes that verify and bench work with: workers, and a service.
package child

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// SafePath is a variable for Python programs: they import no modules from the working directory, where folders may have the names of packages.
const SafePath = "PYTHONSAFEPATH=1"

// Process is a process with which this process exchanges JSON values, one on each line, through its standard input and output. It ends when
// its input ends.
type Process struct {
	Cmd    *exec.Cmd
	name   string
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
	gone   bool
}

// Start starts a process. The name says in errors which process it is, such as "a worker".
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, name: name}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", cmd.Path, err)
	}
	return p, nil
}

// Send sends a value.
func (p *Process) Send(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if p.gone {
		return fmt.Errorf("%s is gone already", p.name)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return p.Lost(err)
	}
	return nil
}

// Receive reads the next value.
func (p *Process) Receive(into any) error {
	if p.gone {
		return fmt.Errorf("%s is gone already", p.name)
	}
	if err := p.out.Decode(into); err != nil {
		return p.Lost(err)
	}
	return nil
}

// Ask sends a value and reads the answer.
func (p *Process) Ask(value, answer any) error {
	if err := p.Send(value); err != nil {
		return err
	}
	return p.Receive(answer)
}

// Gone reports whether the process has ended.
func (p *Process) Gone() bool { return p.gone }

// CloseInput ends the input of the process, so that the process ends.
func (p *Process) CloseInput() { _ = p.in.Close() }

// end waits for the end of the process.
func (p *Process) end() error {
	if p.gone {
		return nil
	}
	p.gone = true
	p.CloseInput()
	return p.Cmd.Wait()
}

// Lost ends the process, and returns an error that says why the process did not answer.
func (p *Process) Lost(err error) error {
	return fmt.Errorf("%s is gone: %w: %s", p.name, errors.Join(err, p.end()), lastLines(p.stderr.String()))
}

// Stop ends the process, if it has not ended, and returns an error if the process did not end normally.
func (p *Process) Stop() error {
	if err := p.end(); err != nil {
		return fmt.Errorf("%s ended badly: %w: %s", p.name, err, lastLines(p.stderr.String()))
	}
	return nil
}

// Kill kills the process, which may wait for ever.
func (p *Process) Kill() {
	if !p.gone {
		_ = p.Cmd.Process.Kill()
		_ = p.end() // the error of a killed process is expected
	}
}

// lastLines returns the last five lines of a text.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
