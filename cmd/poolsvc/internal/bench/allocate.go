package bench

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/poolbridge/poolbridge/mempool"
)

// allocateBytes is the size of the buffers in workload (d).
const allocateBytes = 64 << 10

// pipelined is how many requests run at the same time in the pipelined measurements.
const pipelined = 16

// allocate measures workload (d): the time to allocate and release a buffer, without any use of the buffer.
func allocate(ctx context.Context, s *scene) error {
	return s.withPool(ctx, s.poolSpec(allocateBytes*(pipelined+4)), func(src *source) error { return s.allocateOutside(ctx, src) })
}

// allocateOutside measures allocations from a service in another process, by clients in Go and in Python.
func (s *scene) allocateOutside(ctx context.Context, src *source) error {
	for _, way := range []struct {
		workload string
		run      func(context.Context, *source) (Durations, error)
	}{
		{"allocate/go", s.allocateFrom},
		{"allocate/go/16 at a time", s.allocatePipelined},
		{"allocate/python", s.allocateInPython},
	} {
		d, err := way.run(ctx, src)
		if err != nil {
			return err
		}
		s.add(d, way.workload, allocateBytes)
	}
	return nil
}

func (s *scene) allocateFrom(ctx context.Context, src *source) (Durations, error) {
	watch := newStopwatch(s.Time)
	for watch.more() {
		start := time.Now()
		b, err := src.pool.Allocate(ctx, mempool.Bytes(allocateBytes))
		if err == nil {
			err = b.Release(false)
		}
		if err != nil {
			return Durations{}, err
		}
		watch.took(time.Since(start))
	}
	return watch.durations(), nil
}

// allocatePipelined lets several goroutines allocate over one connection at the same time.
func (s *scene) allocatePipelined(ctx context.Context, src *source) (Durations, error) {
	all := make([]Durations, pipelined)
	start := time.Now()
	var g errgroup.Group
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = s.allocateFrom(ctx, src)
			return err
		})
	}
	err := g.Wait()
	var sum Durations
	for _, d := range all {
		sum.Each = append(sum.Each, d.Each...)
		sum.Elapsed = max(sum.Elapsed, d.Elapsed)
	}
	sum.Elapsed = min(sum.Elapsed, time.Since(start))
	return sum, err
}

// samples is a worker's answer with measurements.
type samples struct {
	Samples []time.Duration `json:"samples"`
	Elapsed time.Duration   `json:"elapsed"`
}

func (s samples) durations() Durations { return Durations{Each: s.Samples, Elapsed: s.Elapsed} }

func (s *scene) allocateInPython(ctx context.Context, src *source) (Durations, error) {
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return Durations{}, err
	}
	var a samples
	err = w.do("allocate", map[string]any{"pool": poolName, "bytes": allocateBytes, "seconds": s.Time.Seconds()}, &a)
	return a.durations(), errors.Join(err, w.stop())
}
