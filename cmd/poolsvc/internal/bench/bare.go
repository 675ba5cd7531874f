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

// bareTask says what Bare must have made when it answers.
type bareTask struct {
	// Pool is the pool to make. nil: make no pool and do not use CUDA.
	Pool *mempool.PoolSpec `json:"pool"`
	// Bytes is the size of each block, which is rounded up to a size that the kind can allocate.
	Bytes uint64 `json:"bytes"`
	// Blocks is the number of blocks. It must not be less than in the task before.
	Blocks int `json:"blocks"`
}

// Bare does with CUDA what a service with this number of buffers does, and nothing else. It makes the memory of one pool, allocates
// blocks in it and exports each. It uses the code of the kind, by a [mempool.Arena], so that the driver is called as in a service. It has
// none of a service's state for the buffers. It does tasks, one JSON object in each line, and answers each with a line, until the input
// ends.
//
// It keeps no Go memory for a block. Nothing in mempool or cuda frees a forgotten block, so the driver still has every block. Before each
// answer it gives garbage back to the system. For kind vmm the garbage collector closes the descriptors of exports, which use none of the
// process's memory.
func Bare(ctx context.Context, in io.Reader, out io.Writer) error {
	var (
		b     bare
		tasks = json.NewDecoder(in)
	)
	debug.FreeOSMemory() // so that the collector's own memory exists before the first answer
	for {
		var task bareTask
		if err := tasks.Decode(&task); errors.Is(err, io.EOF) {
			return nil // the end of the process frees everything
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

// bareProcess is a process that runs Bare.
type bareProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer
}

// startBare starts a process that ends when its standard input ends, and so not later than this process.
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

// rss returns the process's physical memory after it has done the task.
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

// lost ends the process and returns an error that says what went wrong.
func (p *bareProcess) lost(err error) error {
	return fmt.Errorf("a process that only uses CUDA, to tell what of the service's memory is the driver's: %w",
		errors.Join(err, p.stop()))
}

// stop ends the process.
func (p *bareProcess) stop() error {
	if p.cmd.ProcessState != nil { // it has ended already
		return nil
	}
	err := errors.Join(p.in.Close(), p.cmd.Wait()) // the process ends with its input
	if said := strings.TrimSpace(p.stderr.String()); err != nil && said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// driverBytes measures how much of a service's physical memory belongs to CUDA, by the number of blocks in its pool. That is how much a
// process that has not used CUDA grows by making the pool and the blocks. The process ends before the service starts. Memory of the CPU
// needs no driver.
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
