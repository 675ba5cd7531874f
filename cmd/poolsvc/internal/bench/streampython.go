package bench

import (
	"context"
	"errors"
	"time"
)

// publishTask lets a worker publish frames in a channel and then close the channel.
type publishTask struct {
	Channel string  `json:"channel"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Pause   float64 `json:"pause"` // seconds between frames
	Least   int     `json:"least"`
	Most    int     `json:"most"`
}

// publishOnce does the same as streamOnce, with a worker as the producer.
func (s *scene) publishOnce(ctx context.Context, src *source, consumers []consumer, pause time.Duration) (d Durations, err error) {
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	return s.publishBy(ctx, src, w, consumers, pause)
}

func (s *scene) publishBy(ctx context.Context, src *source, w *worker, consumers []consumer, pause time.Duration) (d Durations, err error) {
	ch, _, name, err := s.openStream(ctx, src, consumers)
	if err != nil {
		return d, err
	}
	var sent samples
	err = w.do("publish", publishTask{Channel: name, Bytes: streamBytes, Seconds: s.Time.Seconds(), Pause: pause.Seconds(),
		Least: leastSamples, Most: s.mostFrames(pause)}, &sent)
	if err != nil {
		return d, errors.Join(err, ch.Close(ctx)) // the consumers wait for frames until the channel is closed
	}
	return arrivals(sent.Samples, consumers)
}
