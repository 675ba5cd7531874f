package anomaly

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/poolbridge/poolbridge/mempool"
)

// process is another process of this binary, with a role. It reads JSON values, and answers each value with a JSON
// value.
type process struct {
	cmd *exec.Cmd
	in  io.Closer
	say *json.Encoder
	out *os.File
	ans *json.Decoder
}

// start starts a process. The process ends when its input ends, and at the latest when this process ends.
func start(as string, env ...string) (*process, error) {
	p := &process{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), append([]string{role + "=" + as, "GORACE=atexit_sleep_ms=0"}, env...)...)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p.cmd.Stdout = theirs
	p.in, p.say, p.out, p.ans = in, json.NewEncoder(in), out, json.NewDecoder(out)
	return p, p.cmd.Start()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ask sends a value to the process, and reads the answer.
func (p *process) ask(what, answer any) error {
	if err := p.say.Encode(what); err != nil {
		return fmt.Errorf("the process is gone: %w", err)
	}
	if err := p.ans.Decode(answer); err != nil {
		return fmt.Errorf("the process does not answer: %w", err)
	}
	return nil
}

// end closes the input of the process and waits for its end.
func (p *process) end() error {
	_ = p.in.Close()
	defer p.out.Close()
	return p.cmd.Wait()
}

// remote is a client in its own process.
type remote struct {
	*process
	path   string
	pool   string // the pool that the client uses
	kind   mempool.Kind
	device string
}

// do makes the client do steps, each in the form "op" or "op lease", until a step fails. It returns how many steps
// succeeded.
func (r *remote) do(steps ...string) (int, error) {
	if len(steps) == 0 {
		return 0, nil
	}
	todo := make([]step, len(steps))
	for i, text := range steps {
		todo[i] = step{Path: r.path, Pool: r.pool, Kind: r.kind, Device: r.device}
		_, _ = fmt.Sscan(text, &todo[i].Op, &todo[i].Lease)
	}
	var o outcome
	if err := r.ask(todo, &o); err != nil {
		return 0, err
	}
	if err := o.err(); err != nil {
		return o.Taken, fmt.Errorf("%s: %w", todo[o.Taken], err)
	}
	return o.Taken, nil
}
