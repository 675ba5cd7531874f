// Command stream sends frames, as a camera or a decoder does. The frames are in GPU
// memory or, with -kind host, in host memory. Every subscriber gets every frame. Start
// consumer.py with CuPy, PyTorch or NumPy at the same time, once or several times.
package main

import (
	"context"
	"flag"
	"log"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

func main() {
	kind := flag.String("kind", "device", "or vmm, legacy, pinned, host")
	frames := flag.Int("frames", 300, "how many to send")
	flag.Parse()
	if err := run(context.Background(), bridge.Kind(*kind), *frames); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kind bridge.Kind, frames int) error {
	c, err := open(ctx, kind)
	if err != nil {
		return err
	}
	defer c.client.Close()
	log.Printf("sending %d frames to the channel camera", frames)
	return c.send(ctx, frames, time.Second/30)
}

// A camera has a channel, and a publisher, which lends memory for frames and publishes
// the frames in the channel.
type camera struct {
	client    *bridge.Client
	channel   *bridge.Channel
	publisher *bridge.Publisher
}

func open(ctx context.Context, kind bridge.Kind) (*camera, error) {
	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
	if err != nil {
		return nil, err
	}
	// the pool of an earlier run may exist
	spec := bridge.PoolSpec{Name: "video", Kind: kind, MaxBytes: 64 << 20}
	pool, err := client.EnsurePool(ctx, spec)
	if err != nil {
		client.Close()
		return nil, err
	}
	channel, err := client.CreateChannel(ctx, bridge.ChannelSpec{
		Name: "camera", Pool: pool.Info().ID, Capacity: 4,
		Full: bridge.Block, // a camera that must not wait would use DropOldest
	})
	if err != nil {
		client.Close()
		return nil, err
	}
	image := bridge.Tensor{DType: bridge.Uint8, Shape: []uint64{240, 320, 3}}
	publisher, err := channel.Publisher(ctx, image)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &camera{client, channel, publisher}, nil
}

// send sends frames and then closes the channel. Every byte of a frame is its number.
func (c *camera) send(ctx context.Context, frames int, pause time.Duration) error {
	for n := range frames {
		if err := c.frame(ctx, n); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return c.channel.Close(ctx)
}

// frame sends one frame. If there is no free memory, or if the channel is full, frame
// waits at most a minute.
func (c *camera) frame(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	lease, err := c.publisher.Loan(ctx)
	if err != nil {
		return err
	}
	if err := lease.Fill(ctx, 0, 240*320*3, byte(n)); err != nil {
		return err
	}
	meta := map[string]any{"exposure": n}
	_, err = c.publisher.Publish(ctx, lease, bridge.FrameOptions{Meta: meta})
	return err
}
