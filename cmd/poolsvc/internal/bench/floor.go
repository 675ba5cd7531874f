package bench

import (
	"context"
	"errors"
	"time"
)

// byteBySocket is the name that the report uses for a message of one byte, the smallest message that can wake a sleeping Python process.
const byteBySocket = "a byte through a socket"

// bytesTask lets a worker receive single bytes and return the time at which each byte arrived.
type bytesTask struct {
	Count int `json:"count"`
}

// streamOfBytes measures how long it takes until a sleeping worker has read one byte from a socket. A frame cannot reach a sleeping
// consumer faster than such a byte reaches the worker.
func (s *scene) streamOfBytes(ctx context.Context, src *source) (err error) {
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	task := bytesTask{Count: mostPaced}
	if err := w.begin("bytes", task); err != nil {
		return err
	}
	if err := w.ack(); err != nil {
		return w.failed(err)
	}
	sent := make([]time.Duration, task.Count)
	for i := range sent {
		waitFor(streamPause)
		sent[i] = now()
		if _, err := w.acks.Write([]byte{1}); err != nil {
			return w.failed(err)
		}
	}
	var came samples
	if err := w.end(&came); err != nil {
		return err
	}
	var d Durations
	if err := d.arrived(sent, came.Samples); err != nil {
		return err
	}
	s.add(d, streamName("go-python", 1), 1, byteBySocket)
	return nil
}
