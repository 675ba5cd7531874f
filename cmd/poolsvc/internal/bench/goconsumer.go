package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// ConsumeCommand is the name of the hidden command that runs Consume.
const ConsumeCommand = "bench-consumer"

// Consume takes the frames of a channel until the channel is closed. It writes the line "ready" after the first frame. At the end, it
// writes a JSON list of the times at which it took the later frames.
func Consume(ctx context.Context, socket, channel string, out io.Writer) (err error) {
	c, err := bridge.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ch, err := c.OpenChannel(ctx, channel)
	if err != nil {
		return err
	}
	stamps := make([]time.Duration, 0, 1<<20)
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Oldest: true}) {
		if err != nil {
			return err
		}
		stamps = append(stamps, now())
		if err := numberIs(ctx, f.Lease, uint64(len(stamps)-1)); err != nil {
			return err
		}
		if err := f.Release(); err != nil {
			return err
		}
		if len(stamps) == 1 {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
	}
	return json.NewEncoder(out).Encode(stamps[1:])
}

// goConsumer runs Consume, in a new process for each channel.
type goConsumer struct {
	poolsvc, socket string
	cmd             *exec.Cmd // nil if no process is running
	out             *bufio.Reader
	stderr          bytes.Buffer
}

func (s *scene) startGoConsumer(_ context.Context, src *source) (consumer, error) {
	return &goConsumer{poolsvc: s.Poolsvc, socket: src.socket}, nil
}

func (c *goConsumer) begin(ctx context.Context, channel string) error {
	cmd := exec.CommandContext(ctx, c.poolsvc, ConsumeCommand, c.socket, channel)
	cmd.Stderr = &c.stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.cmd = cmd
	return nil
}

func (c *goConsumer) ready() error {
	_, err := c.out.ReadString('\n')
	return c.ended(err)
}

func (c *goConsumer) stamps() (stamps []time.Duration, err error) {
	if err = json.NewDecoder(c.out).Decode(&stamps); err == nil {
		err = c.stop()
	}
	return stamps, c.ended(err)
}

func (c *goConsumer) stop() error {
	if c.cmd == nil {
		return nil
	}
	err := c.cmd.Wait()
	c.cmd = nil
	return err
}

// ended ends the process, and returns an error with the output of the process.
func (c *goConsumer) ended(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("a consumer: %w: %s", errors.Join(err, c.stop()), c.stderr.String())
}
