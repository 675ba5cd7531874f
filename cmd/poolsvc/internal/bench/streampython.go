package bench

import (
	"context"
	"errors"
	"time"
)

// streamFromPython measures a stream from a worker to a consumer in a third process.
func (s *scene) streamFromPython(ctx context.Context, src *source) (err error) {
	c, err := s.startGoConsumer(ctx, src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	fast, err := s.publishOnce(ctx, src, w, c, 0)
	if err != nil {
		return err
	}
	paced, err := s.publishOnce(ctx, src, w, c, streamPause)
	if err != nil {
		return err
	}
	fast.Each = paced.Each
	s.add(fast, streamName("python-go", 1), streamBytes, ours)
	return nil
}

// publishTask lets a worker publish frames in a channel and then close the channel.
type publishTask struct {
	Task    string  `json:"task"`
	Channel string  `json:"channel"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Pause   float64 `json:"pause"` // seconds between frames
	Least   int     `json:"least"`
	Most    int     `json:"most"`
}

func (s *scene) publishOnce(ctx context.Context, src *source, w *worker, c consumer, pause time.Duration) (d Durations, err error) {
	ch, _, name, err := s.openStream(ctx, src, []consumer{c})
	if err != nil {
		return d, err
	}
	var sent samples
	err = w.do(publishTask{Task: "publish", Channel: name, Bytes: streamBytes, Seconds: s.Time.Seconds(), Pause: pause.Seconds(),
		Least: leastSamples, Most: s.mostFrames(pause)}, &sent)
	if err != nil {
		return d, errors.Join(err, ch.Close(ctx)) // the consumer waits for frames until the channel is closed
	}
	came, err := c.stamps()
	if err == nil {
		err = d.arrived(sent.Samples, came)
	}
	return d, err
}
