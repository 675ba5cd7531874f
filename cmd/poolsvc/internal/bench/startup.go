package bench

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/mempool"
)

// startUpBytes is the size of the buffer in workload (f).
const startUpBytes = 1 << 20

// These are the numbers of measurements of each case of workload (f).
const (
	freshProcesses = 5
	reconnections  = 50
)

// connectTask lets a worker connect to the service and make an array of a published buffer, several times.
type connectTask struct {
	Name     string `json:"name"`
	Consumer string `json:"consumer"`
	Count    int    `json:"count"`
}

// startUp measures workload (f): the time from `connect` to the first array. It measures the first connection of a new
// process, which has imported its array library but has used neither poolbridge nor the GPU before, and later connections
// of a process that has used both.
func startUp(ctx context.Context, s *scene) error {
	return s.withPool(ctx, s.poolSpec(startUpBytes), func(src *source) error { return s.startUpAt(ctx, src) })
}

func (s *scene) startUpAt(ctx context.Context, src *source) error {
	const name = "start-up"
	if err := transferOne(ctx, src, name, mempool.Bytes(startUpBytes), 0); err != nil {
		return err
	}
	connect := func(count int) (Durations, error) {
		w, err := startWorker(ctx, s.Python, src.socket)
		if err != nil {
			return Durations{}, err
		}
		var a samples
		err = w.do("connect", connectTask{Name: name, Consumer: s.consumer, Count: count}, &a)
		return a.durations(), errors.Join(err, w.stop())
	}
	var first Durations
	for range freshProcesses {
		d, err := connect(1)
		if err != nil {
			return err
		}
		first.Each = append(first.Each, d.Each...)
		first.Elapsed += d.Elapsed
	}
	s.add(first, "start-up/first", startUpBytes)
	again, err := connect(reconnections + 1)
	if err != nil {
		return err
	}
	again.Elapsed -= again.Each[0]
	again.Each = again.Each[1:]
	s.add(again, "start-up/again", startUpBytes)
	return src.client.Unpublish(ctx, name)
}
