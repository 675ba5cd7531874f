package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/poolbridge/poolbridge/internal/spin"
)

// spinRounds is how many times each way of waiting is measured. After each round of one way, the bench measures a round of the other way.
const spinRounds = 10

// spinWay is one way of waiting. spins says whether waiting processes spin, in Go and in Python, while this way is measured.
type spinWay struct {
	system string
	spins  bool
}

var spinWays = []spinWay{{ours, true}, {ours + ", without spinning", false}}

// spinningOrNot measures workload (i): how much faster a transfer and a stream are if the processes spin adaptively while they wait (each
// process decides how long it spins). Programs in Go and in Python wait with spinning and without spinning, in turn.
func spinningOrNot(ctx context.Context, s *scene) error {
	defer spin.Switch(true)
	return s.withService(ctx, func(svc *service) error {
		src, err := dial(ctx, svc.socket)
		if err != nil {
			return err
		}
		err = s.spinTransfer(ctx, src)
		if err == nil {
			err = src.makePool(ctx, s.streamPool())
		}
		if err == nil {
			err = s.spinStream(ctx, src, "spinning/go-go", s.startGoConsumer)
		}
		if err == nil {
			err = s.spinStream(ctx, src, "spinning/go-python", s.startPythonConsumer)
		}
		return errors.Join(err, src.close())
	})
}

// inTurn measures the ways of waiting in turn, for all rounds, and adds the medians to the report.
func (s *scene) inTurn(workload string, bytes uint64, measure func(round int) (Durations, error)) error {
	results := make([][]Result, len(spinWays))
	for round := range spinRounds {
		for i, way := range spinWays {
			spin.Switch(way.spins)
			d, err := measure(round*len(spinWays) + i)
			if err != nil {
				return fmt.Errorf("%s: %w", workload, err)
			}
			results[i] = append(results[i], d.result(workload, string(s.kind), bytes, way.system))
		}
	}
	for _, rounds := range results {
		s.addResult(median(rounds))
	}
	return nil
}

// spinTransfer transfers buffers to a worker. The pool can hold only one buffer, so the producer can allocate the next buffer only after
// the worker has released the previous buffer.
func (s *scene) spinTransfer(ctx context.Context, src *source) (err error) {
	w, err := startWorker(ctx, s.Python, src.socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := s.makeRoomForOne(ctx, src, s.poolSpec(oneSize), oneSize); err != nil {
		return err
	}
	err = s.inTurn("spinning/transfer", oneSize, func(round int) (Durations, error) {
		return s.transferTo(ctx, src, w, oneSize, "spinning "+strconv.Itoa(round), false)
	})
	return errors.Join(err, src.destroyPool(ctx))
}

// spinStream streams to one consumer, once without pauses and once with pauses.
func (s *scene) spinStream(ctx context.Context, src *source, workload string, start func(context.Context, *source) (consumer, error)) (err error) {
	c, err := start(ctx, src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	return s.inTurn(workload, streamBytes, func(int) (Durations, error) {
		fast, err := s.streamOnce(ctx, src, []consumer{c}, 0)
		if err != nil {
			return fast, err
		}
		var paced Durations
		paced, err = s.streamOnce(ctx, src, []consumer{c}, streamPause)
		fast.Each = paced.Each
		return fast, err
	})
}

// median returns the medians of the rounds, with the range of the rounds.
func median(rounds []Result) Result {
	of := func(figure func(Result) float64) (float64, *[2]float64) {
		values := make([]float64, len(rounds))
		for i, r := range rounds {
			values[i] = figure(r)
		}
		slices.Sort(values)
		n := len(values)
		return (values[(n-1)/2] + values[n/2]) / 2, &[2]float64{values[0], values[n-1]}
	}
	out := rounds[0]
	out.Rounds, out.P999, out.Samples = len(rounds), nil, 0
	for _, r := range rounds {
		out.Samples += r.Samples
	}
	p50, p50s := of(func(r Result) float64 { return *r.P50 })
	p99, _ := of(func(r Result) float64 { return *r.P99 })
	out.P50, out.P50Range, out.P99 = &p50, p50s, &p99
	out.PerSecond, out.PerSecondRange = of(func(r Result) float64 { return r.PerSecond })
	return out
}
