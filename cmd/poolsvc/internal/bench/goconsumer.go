package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
	"github.com/poolbridge/poolbridge/mempool"
)

// ConsumeCommand is the name of the hidden command that runs Consume.
const ConsumeCommand = "bench-consumer"

// Consume takes the frames of a channel until the channel is closed. It writes the JSON text "ready" after the first frame. At the end, it
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
			if err := json.NewEncoder(out).Encode("ready"); err != nil {
				return err
			}
		}
	}
	return json.NewEncoder(out).Encode(stamps[1:])
}

// goConsumer runs Consume, in a new process for each channel.
type goConsumer struct {
	*child.Process  // nil if no process is running
	poolsvc, socket string
}

func (s *scene) startGoConsumer(_ context.Context, src *source) (consumer, error) {
	return &goConsumer{poolsvc: s.Poolsvc, socket: src.socket}, nil
}

func (c *goConsumer) begin(ctx context.Context, channel string) (err error) {
	c.Process, err = child.Start("a consumer", exec.CommandContext(ctx, c.poolsvc, ConsumeCommand, c.socket, channel))
	return err
}

func (c *goConsumer) ready() error { return c.Receive(new(string)) }

func (c *goConsumer) stamps() (stamps []time.Duration, err error) {
	if err = c.Receive(&stamps); err == nil {
		err = c.stop()
	}
	return stamps, err
}

func (c *goConsumer) stop() error {
	if c.Process == nil {
		return nil
	}
	return c.Stop()
}
