package bench

import (
	"context"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// framesTask lets a worker make an array of each frame of a channel until the channel is closed. The worker acknowledges the first frame.
type framesTask struct {
	Channel  string `json:"channel"`
	Consumer string `json:"consumer"`
	Credit   int    `json:"credit"`
	// If Each is true, the worker reads the number of each frame from the frame's memory. The producer writes the number only into memory
	// of the CPU.
	Each bool `json:"each"`
	// Spin is how long, in seconds, the worker spins when it waits for a frame. If Spin is 0, the worker itself decides how long it spins.
	Spin float64 `json:"spin"`
	// If Leases is true, the worker makes a new array for each frame. Otherwise the worker makes one array for each block of memory, and uses
	// it for all frames in this block.
	Leases bool `json:"leases"`
	// If OnDevice is true, the arrays are in GPU memory, and the worker uses them in a CUDA stream.
	OnDevice bool `json:"on_device"`
}

// pyConsumer is a Python worker that takes frames.
type pyConsumer struct {
	*worker
	task framesTask
}

// spinning is how long, in seconds, a spinning consumer spins: longer than any pause between frames.
const spinning = 10

func (s *scene) startPythonConsumer(ctx context.Context, src *source) (consumer, error) {
	return s.startConsumer(ctx, src, framesTask{})
}

func (s *scene) startSpinningConsumer(ctx context.Context, src *source) (consumer, error) {
	return s.startConsumer(ctx, src, framesTask{Spin: spinning})
}

func (s *scene) startLeasingConsumer(ctx context.Context, src *source) (consumer, error) {
	return s.startConsumer(ctx, src, framesTask{Leases: true})
}

func (s *scene) startConsumer(ctx context.Context, src *source, task framesTask) (consumer, error) {
	task.Consumer, task.Credit, task.OnDevice = s.consumer, streamCapacity, s.kind != mempool.Host
	w, err := startWorker(ctx, s.Python, src.socket)
	return pyConsumer{w, task}, err
}

func (c pyConsumer) begin(_ context.Context, channel string) error {
	task := c.task
	task.Channel = channel
	return c.worker.begin("frames", task)
}

func (c pyConsumer) ready() error {
	if err := c.ack(); err != nil {
		return c.failed(err)
	}
	return nil
}

func (c pyConsumer) stamps() ([]time.Duration, error) {
	var a samples
	err := c.end(&a)
	return a.Samples, err
}
