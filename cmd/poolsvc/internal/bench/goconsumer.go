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

// ConsumeCommand is the hidden command that runs Consume.
const ConsumeCommand = "bench-consumer"

// Consume takes the frames of a channel until it is shut. It writes a line when it has the first, which says that it is
// there, and at the end when each of the others was in hand, as JSON.
func Consume(ctx context.Context, socket, channel string, out io.Writer) (err error) {
	c, err := bridge.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ch, err := c.OpenChannel(ctx, channel, patience)
	if err != nil {
		return err
	}
	stamps := make([]time.Duration, 0, 1<<20)
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{Credit: streamCapacity, Oldest: true}) {
		if err != nil {
			return err
		}
		stamps = append(stamps, now())
		if err := numberIs(f.Lease, uint64(len(stamps)-1)); err != nil {
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

// goConsumer is a process that runs Consume.
type goConsumer struct {
	cmd    *exec.Cmd
	out    *bufio.Reader
	stderr bytes.Buffer
}

func (s *scene) startGoConsumer(ctx context.Context, socket, channel string) (consumer, error) {
	c := &goConsumer{cmd: exec.CommandContext(ctx, s.Poolsvc, ConsumeCommand, socket, channel)}
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if _, err := c.out.ReadString('\n'); err != nil {
		return nil, fmt.Errorf("a consumer did not subscribe: %w: %w: %s", err, c.cmd.Wait(), c.stderr.String())
	}
	return c, nil
}

func (c *goConsumer) stamps() (stamps []time.Duration, err error) {
	err = json.NewDecoder(c.out).Decode(&stamps)
	if err = errors.Join(err, c.cmd.Wait()); err != nil {
		return nil, fmt.Errorf("a consumer: %w: %s", err, c.stderr.String())
	}
	return stamps, nil
}
