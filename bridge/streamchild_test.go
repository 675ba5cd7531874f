package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func init() {
	children["produce"] = produce
	children["consume"] = consume
	children["service"] = serveUntilTold
	children["steady producer"] = steadyProducer
	children["steady consumer"] = steadyConsumer
}

// simulation returns a function that makes a child use the simulated driver. The driver counts the child's calls and writes the counts to
// the folder `counts`. If the simulated driver is not built, simulation skips the test.
func simulation(t testing.TB, counts string) func(*exec.Cmd) {
	t.Helper()
	dir, err := filepath.Abs("../build/simcuda")
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "libcuda.so.1"))
	}
	if err != nil {
		t.Skip("the simulated driver is not built: make simcuda: ", err)
	}
	return func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir, "SIMCUDA_COUNTS="+counts, "SIMCUDA_STREAM_MEM_OPS=1")
	}
}

// with returns a function that adds variables to a child's environment.
func with(env ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) }
}

// produce executes the lines that it reads: "send N SIZE" sends a frame. "promise N SIZE" sends a frame whose content is complete only
// after the line "keep N SIZE".
func produce() error {
	ctx := context.Background()
	c, p, ch, err := openStream(ctx)
	if err != nil {
		return err
	}
	clock, err := c.Clock(ctx)
	if err != nil {
		return err
	}
	word, err := clock.Word(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	var keep func() error
	for in.Scan() {
		var verb string
		var n uint64
		var size int
		if _, err := fmt.Sscan(in.Text(), &verb, &n, &size); err != nil {
			return err
		}
		said := "sent"
		switch verb {
		case "send":
			err = sendFrame(ctx, p, ch, n, size, mempool.FrameOptions{})
		case "promise":
			keep, err = promiseFrame(ctx, p, ch, n, size, clock, word)
		case "keep":
			said, err = "kept", keep()
		}
		if err != nil {
			return err
		}
		fmt.Println(said, n)
	}
	return c.Close()
}

// promiseFrame sends a frame whose content is not complete. The returned function `keep` reaches the fence of the content. If the CPU can
// access the memory, `keep` first writes the content. Otherwise promiseFrame itself writes the content, before it sends the frame.
func promiseFrame(ctx context.Context, p *Pool, ch *Channel, n uint64, size int, clock *mempool.Clock, word uint64) (keep func() error, err error) {
	content := frameOf(n, size)
	l, err := p.Allocate(ctx, mempool.Bytes(uint64(len(content))))
	if err != nil {
		return nil, err
	}
	b, err := l.Bytes(context.Background())
	if err == nil && b == nil {
		err = l.CopyFrom(context.Background(), 0, content)
	}
	if err != nil {
		return nil, err
	}
	ready := clock.Next(word)
	o := mempool.FrameOptions{Completion: mempool.Completion{Ready: &ready}, Meta: map[string]any{"n": fmt.Sprint(n)}}
	_, err = ch.Publish(ctx, l, o)
	return func() error {
		copy(b, content)
		return clock.Reach(ready)
	}, err
}

// consume prints "ready" before it subscribes to the channel by its name, so that it also takes the frames of a closed queue. It prints a line
// for each frame: "got N SEQ DROPPED" if the content is complete, where N is the number in the content, or "failed SEQ". If the environment
// variable HOLD is set, consume releases a frame only when it reads a line. consume also
// prints a line when the channel has ended, and when a signal stops this process.
func consume() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := Dial(ctx, os.Getenv("POOLBRIDGE_SOCKET"))
	if err == nil {
		_, err = c.OpenPool(ctx, "p") // before it subscribes, because this can take seconds
	}
	if err != nil {
		return err
	}
	o := mempool.SubscribeOptions{Oldest: os.Getenv("OLDEST") != "", Full: mempool.FullPolicy(os.Getenv("FULL"))}
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	frames, err := c.TrySubscribe(ctx, "c", o)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrClosed) { // the channel was closed, before or while this process joined it
		fmt.Println("ended")
		return c.Close()
	}
	if err != nil {
		return err
	}
	for f, err := range frames.Frames(ctx) {
		switch {
		case errors.Is(err, ErrProducerDied) && f != nil:
			fmt.Println("failed", f.Seq)
			continue
		case ctx.Err() != nil:
			fmt.Println("stopped")
			return c.Close()
		case err != nil:
			return err
		}
		n, err := verify(f)
		switch {
		case errors.Is(err, ErrProducerDied):
			fmt.Println("failed", f.Seq)
		case err != nil:
			return err
		default:
			fmt.Println("got", n, f.Seq, f.Dropped)
		}
		if os.Getenv("HOLD") != "" {
			in.Scan()
		}
		if os.Getenv("KEEP") != "" {
			continue // asking for the next frame acknowledges this frame
		}
		if err := f.Release(); err != nil {
			return err
		}
	}
	fmt.Println("ended")
	return c.Close()
}

// serveUntilTold runs a server until it reads a line.
func serveUntilTold() error {
	svc := service.New(service.Config{})
	defer svc.Close()
	srv, err := server.Listen(os.Getenv("POOLBRIDGE_SOCKET"), svc, server.Config{})
	if err != nil {
		return err
	}
	fmt.Println("serving")
	bufio.NewScanner(os.Stdin).Scan()
	return srv.Close()
}

// steadyProducer reads lines. For each line, it sends the number of frames that the line says.
func steadyProducer() error {
	ctx := context.Background()
	c, err := Dial(ctx, os.Getenv("POOLBRIDGE_SOCKET"))
	if err != nil {
		return err
	}
	p, err := c.CreatePool(ctx, mempool.PoolSpec{Name: "p", Kind: mempool.Device, MaxBytes: 64 << 20})
	if err != nil {
		return err
	}
	ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: p.Info().ID, Capacity: 4})
	if err != nil {
		return err
	}
	from, err := ch.Publisher(ctx, mempool.Bytes(1<<20))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var frames int
		if _, err := fmt.Sscan(in.Text(), &frames); err != nil {
			return err
		}
		for range frames {
			l, err := from.Loan(ctx)
			if err != nil {
				return err
			}
			if err := l.Fill(context.Background(), 0, 1<<20, 7); err != nil { // one driver call, which does not wait
				return err
			}
			if _, err := from.Publish(ctx, l, mempool.FrameOptions{}); err != nil {
				return err
			}
		}
		fmt.Println("sent")
	}
	return errors.Join(ch.Close(ctx), c.Close())
}

// steadyConsumer uses each frame only in the queue of the GPU, and prints its number.
func steadyConsumer() error {
	ctx := context.Background()
	c, _, ch, err := openStream(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
		if err != nil {
			return err
		}
		var q mempool.Queue
		if err := f.Lease.held.With(ctx, 0, 0, false, func(m mempool.Memory) error {
			q = m.Queue()
			return nil
		}); err != nil {
			return err
		}
		if err := f.Lease.WaitOn(ctx, q); err != nil {
			return err
		}
		if err := f.ReleaseAfter(ctx, q); err != nil {
			return err
		}
		fmt.Println(f.Seq)
	}
	return c.Close()
}
