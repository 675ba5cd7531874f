package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// BareCommand is the name of the hidden command that runs Bare.
const BareCommand = "bench-bare"

// bareTask says which memory Bare must have made when Bare answers the task.
type bareTask struct {
	// Pool is the pool to make. If Pool is nil, Bare makes no pool and does not use CUDA.
	Pool *mempool.PoolSpec `json:"pool"`
	// Bytes is the size of each block. Bare rounds Bytes up to a size that Pool can allocate.
	Bytes uint64 `json:"bytes"`
	// Blocks is the number of blocks. It must not be less than Blocks of an earlier task, because Bare frees no blocks.
	Blocks int `json:"blocks"`
}

// Bare makes the same calls of CUDA as a service that has one buffer for each block of the task, and does nothing else. It makes one pool,
// allocates blocks in the pool and exports each block. Bare allocates through the [mempool.Backing] of the pool's kind, as a service does.
// But unlike a service, Bare keeps no data about buffers. Bare reads tasks, one JSON object on each line, and answers each task with a
// line, until the input ends.
//
// Bare keeps no Go value of a block. But the driver keeps every block, because packages mempool and cuda do not free a block when the
// program loses its Go value. Before each answer, Bare runs the garbage collector and returns free Go memory to the system. For the kind
// vmm, the garbage collector closes the descriptors of exports. This does not change the measurement, because a descriptor uses no memory
// of the process.
func Bare(ctx context.Context, in io.Reader, out io.Writer) error {
	var (
		b     bare
		tasks = json.NewDecoder(in)
	)
	debug.FreeOSMemory() // so that the garbage collector allocates its own memory before the first answer
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

// bare is the memory that Bare has made.
type bare struct {
	backing mempool.Backing // nil until there is a pool
	blocks  int
}

func (b *bare) carryOut(ctx context.Context, task bareTask) (err error) {
	if task.Pool == nil {
		return nil
	}
	if b.backing == nil {
		if b.backing, err = mempool.NewBacking(*task.Pool, hostmem.New()); err != nil {
			return err
		}
	}
	if task.Bytes == 0 {
		return fmt.Errorf("a task of %s with a pool says the bytes of each block, at least 1, not 0", BareCommand)
	}
	granularity := b.backing.Granularity()
	size := (task.Bytes + granularity - 1) / granularity * granularity
	if room := task.Pool.MaxBytes / size; uint64(task.Blocks) > room {
		return fmt.Errorf("a pool of kind %q that may take %d bytes has room for %d blocks of %d, not for %d: lower --max-buffers",
			task.Pool.Kind, task.Pool.MaxBytes, room, size, task.Blocks)
	}
	for ; b.blocks < task.Blocks; b.blocks++ {
		block, err := b.backing.Allocate(ctx, size)
		if err == nil {
			_, err = block.Export()
		}
		if err != nil {
			return fmt.Errorf("block %d of %d: %w", b.blocks+1, task.Blocks, err)
		}
	}
	return nil
}

// rssAfter lets a process that runs Bare do a task, and returns the physical memory of the process after the task.
func rssAfter(p *child.Process, task bareTask) (uint64, error) {
	var blocks int
	if err := p.Ask(task, &blocks); err != nil {
		return 0, err
	}
	if blocks != task.Blocks {
		return 0, p.Lost(fmt.Errorf("it has %d blocks, not the %d it was told to make", blocks, task.Blocks))
	}
	return rssOf(p.Cmd.Process.Pid)
}

// driverBytes measures how much of a service's physical memory belongs to CUDA, for each number of blocks in the list `blocks`. To do so,
// it starts a separate process that has not used CUDA, and measures how much the separate process grows when it makes the pool and the
// blocks. The separate process ends before the service starts. If the pool has memory of the CPU, driverBytes returns nil, because such a
// pool does not use CUDA.
func (s *scene) driverBytes(ctx context.Context, pool mempool.PoolSpec, blocks []int) (_ map[int]uint64, err error) {
	if s.kind == mempool.Host {
		return nil, nil
	}
	p, err := child.Start("a process that only uses CUDA, to tell what of the service's memory is the driver's,", exec.CommandContext(ctx, s.Poolsvc, BareCommand))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	before, err := rssAfter(p, bareTask{})
	if err != nil {
		return nil, err
	}
	driver := make(map[int]uint64, len(blocks))
	for _, n := range blocks {
		rss, err := rssAfter(p, bareTask{Pool: &pool, Bytes: ballastBytes, Blocks: n})
		if err != nil {
			return nil, err
		}
		driver[n] = rss - min(rss, before)
	}
	return driver, nil
}
