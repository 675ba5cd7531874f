package bench

import (
	"context"
	"time"
)

// framesTask has a worker make an array of each frame of a channel until it is shut, and acknowledge the first or each.
type framesTask struct {
	Task     string `json:"task"`
	Channel  string `json:"channel"`
	Consumer string `json:"consumer"`
	Credit   int    `json:"credit"`
	Each     bool   `json:"each"`
	// Spin is for how many seconds a wait for a frame does not sleep.
	Spin float64 `json:"spin"`
}

// pyConsumer is a worker that takes frames.
type pyConsumer struct {
	*worker
	library string
	spin    float64
}

// spinning is how long a consumer that spins does so, in seconds: longer than frames are apart.
const spinning = 10

func (s *scene) startPythonConsumer(ctx context.Context, src source) (consumer, error) {
	w, err := startWorker(ctx, s.Python, src.socket())
	return pyConsumer{worker: w, library: s.consumer}, err
}

func (s *scene) startSpinningConsumer(ctx context.Context, src source) (consumer, error) {
	w, err := startWorker(ctx, s.Python, src.socket())
	return pyConsumer{worker: w, library: s.consumer, spin: spinning}, err
}

func (c pyConsumer) begin(_ context.Context, channel string) error {
	return c.worker.begin(framesTask{Task: "frames", Channel: channel, Consumer: c.library, Credit: streamCapacity, Spin: c.spin})
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
