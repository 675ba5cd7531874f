package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"strings"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// BareCommand is the hidden command that runs Bare.
const BareCommand = "bench-bare"

// bareTask says what Bare has when it answers.
type bareTask struct {
	// Pool is what its memory comes from; nil for none, and CUDA has not been touched.
	Pool *mempool.PoolSpec `json:"pool"`
	// Bytes of each block, rounded up to what the kind can allocate.
	Bytes uint64 `json:"bytes"`
	// Blocks are as many as there were in the task before, or more.
	Blocks int `json:"blocks"`
}

// Bare does with CUDA what a service does that has so many buffers, and nothing else: it makes the memory of one pool,
// allocates blocks in it and exports each. The kind's own code does that, by a [mempool.Arena], so that the driver is called
// as a service calls it; what a service would know of the buffers is not there. It carries out tasks, one JSON object a line,
// each answered with a line, until there are none.
//
// Of Go's memory it keeps nothing for a block: nothing in mempool or cuda gives back what is forgotten, so the driver still
// has every block. What was garbage is given back to the system before each answer. For kind vmm the collector closes the
// descriptors of exports, which take none of the process's memory.
func Bare(ctx context.Context, in io.Reader, out io.Writer) error {
	var (
		b     bare
		tasks = json.NewDecoder(in)
	)
	debug.FreeOSMemory() // what the collector itself needs is there before the first answer
	for {
		var task bareTask
		if err := tasks.Decode(&task); errors.Is(err, io.EOF) {
			return nil // the end of the process gives everything back
		} else if err != nil {
			return fmt.Errorf("a task of %s: %w", BareCommand, err)
		}
		if err := b.carryOut(ctx, task); err != nil {
			return err
		}
		debug.FreeOSMemory()
		if _, err := fmt.Fprintln(out, b.blocks); err != nil {
			return err
		}
	}
}

// bare is what Bare has made.
type bare struct {
	arena  mempool.Arena // nil before there is a pool
	blocks int
}

func (b *bare) carryOut(ctx context.Context, task bareTask) (err error) {
	if task.Pool == nil {
		return nil
	}
	if b.arena == nil {
		if b.arena, err = mempool.NewArena(*task.Pool, hostmem.New()); err != nil {
			return err
		}
	}
	if task.Bytes == 0 {
		return fmt.Errorf("a task of %s with a pool says the bytes of each block, at least 1, not 0", BareCommand)
	}
	granularity := b.arena.Granularity()
	size := (task.Bytes + granularity - 1) / granularity * granularity
	if room := task.Pool.MaxBytes / size; uint64(task.Blocks) > room {
		return fmt.Errorf("a pool of kind %q that may take %d bytes has room for %d blocks of %d, not for %d: lower --max-buffers",
			task.Pool.Kind, task.Pool.MaxBytes, room, size, task.Blocks)
	}
	for ; b.blocks < task.Blocks; b.blocks++ {
		block, err := b.arena.Allocate(ctx, size)
		if err == nil {
			_, err = block.Export()
		}
		if err != nil {
			return fmt.Errorf("block %d of %d: %w", b.blocks+1, task.Blocks, err)
		}
	}
	return nil
}

// bareProcess runs Bare.
type bareProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
}

// startBare starts a process that ends with its standard input, and so with this one.
func startBare(ctx context.Context, poolsvc string) (*bareProcess, error) {
	p := &bareProcess{cmd: exec.CommandContext(ctx, poolsvc, BareCommand)}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", poolsvc, err)
	}
	return p, nil
}

// rss is the process's physical memory once it has what the task says.
func (p *bareProcess) rss(task bareTask) (uint64, error) {
	if err := json.NewEncoder(p.in).Encode(task); err != nil {
		return 0, p.lost(err)
	}
	var blocks int
	if err := p.out.Decode(&blocks); err != nil {
		return 0, p.lost(err)
	}
	if blocks != task.Blocks {
		return 0, p.lost(fmt.Errorf("it has %d blocks, not the %d it was told to make", blocks, task.Blocks))
	}
	return rssOf(p.cmd.Process.Pid)
}

// lost explains what went wrong with the process, and ends it.
func (p *bareProcess) lost(err error) error {
	return fmt.Errorf("a process that only uses CUDA, to tell what of the service's memory is the driver's: %w",
		errors.Join(err, p.stop()))
}

// stop ends the process.
func (p *bareProcess) stop() error {
	if p.cmd.ProcessState != nil { // it has ended already
		return nil
	}
	err := errors.Join(p.in.Close(), p.cmd.Wait()) // without input it ends
	if said := strings.TrimSpace(p.stderr.String()); err != nil && said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// driverBytes measures what of a service's physical memory is CUDA's own, by the number of blocks that its pool has: what
// making the pool and so many blocks adds to a process that has not touched CUDA. The process is gone before the service is
// there. Memory of the CPU needs no driver.
func (s *scene) driverBytes(ctx context.Context, pool mempool.PoolSpec, blocks []int) (_ map[int]uint64, err error) {
	if s.kind == mempool.Host {
		return nil, nil
	}
	p, err := startBare(ctx, s.Poolsvc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	before, err := p.rss(bareTask{})
	if err != nil {
		return nil, err
	}
	driver := make(map[int]uint64, len(blocks))
	for _, n := range blocks {
		rss, err := p.rss(bareTask{Pool: &pool, Bytes: ballastBytes, Blocks: n})
		if err != nil {
			return nil, err
		}
		driver[n] = rss - min(rss, before)
	}
	return driver, nil
}
