package verify

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// withVictim starts a worker that uses the library of the check, and passes it to the function `run` as the argument `victim`. The function
// `run` kills this worker.
func withVictim(run func(ctx context.Context, f *flow, victim player) error) func(context.Context, *flow) error {
	return func(ctx context.Context, f *flow) error {
		w, err := f.fresh(role{consumer: f.one.consumer})
		if err != nil {
			return err
		}
		defer w.kill()
		return run(ctx, f, player{w, f.one.consumer})
	}
}

// consumerKilled kills a consumer. Before that, this consumer keeps a frame of a broadcast, which blocks the broadcast, and keeps frames of
// a queue. After the kill, the broadcast must continue, and another consumer must get the frames of the queue that the killed consumer
// kept.
func consumerKilled(ctx context.Context, f *flow, victim player) error {
	q, err := f.another(ctx, mempool.WorkQueue, mempool.Block)
	if err != nil {
		return err
	}
	if err := errors.Join(f.publish(ctx, f.producer, 1, 1), q.publish(ctx, f.producer, 1, ringSlots)); err != nil {
		return err
	}
	if _, err := q.take(ctx, victim, work.Task{Keep: true}, 1, 2); err != nil {
		return err
	}
	if _, err := q.take(ctx, f.other, work.Task{Keep: true}, 3, ringSlots); err != nil {
		return err
	}
	if _, err := f.take(ctx, victim, work.Task{Oldest: true, Keep: true}, 1, 1); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.other, work.Task{Oldest: true}, 1, 1); err != nil {
		return err
	}
	if err := f.fill(ctx, f.producer, "timeout"); err != nil {
		return err
	}
	victim.kill()
	err = together(ctx, f.publishing(f.producer, ringSlots+1, streamFrames), f.taking(f.other, 2, streamFrames))
	if err != nil {
		return err
	}
	if err := errors.Join(q.close(ctx, f.producer), q.release(ctx, f.other)); err != nil {
		return err
	}
	got, err := q.rest(ctx, f.other)
	if err != nil {
		return err
	}
	return eachOnce(got, 1, 2)
}

// producerKilled kills a producer. The consumers must get the frames that the producer had completed, and another producer must be able
// to publish.
//
// When a process is killed, the GPU drops the work that the process has queued. If this work would have written the content of a frame, the
// frame is lost. So the check kills the producer only after one consumer has read all frames: at this time, their content is complete.
func producerKilled(ctx context.Context, f *flow, victim player) error {
	if err := f.publish(ctx, victim, 1, 1); err != nil {
		return err
	}
	for _, p := range []player{f.one, f.other} {
		if _, err := f.take(ctx, p, work.Task{Oldest: true}, 1, 1); err != nil {
			return err
		}
	}
	if err := f.publish(ctx, victim, 2, ringSlots); err != nil {
		return err
	}
	if _, err := f.take(ctx, f.other, work.Task{}, 2, ringSlots); err != nil {
		return err
	}
	if err := f.leave(ctx, f.other); err != nil {
		return err
	}
	victim.kill()
	if _, err := f.take(ctx, f.one, work.Task{}, 2, ringSlots); err != nil {
		return err
	}
	return together(ctx, f.publishing(f.producer, ringSlots+1, streamFrames), f.taking(f.one, ringSlots+1, streamFrames))
}

// stageReplaced kills the worker that copies frames from a queue to a broadcast, while this worker keeps a frame. Then it lets another
// worker copy the frames. The consumer of the broadcast must get every frame.
func stageReplaced(ctx context.Context, in *flow, victim player) error {
	out, err := in.another(ctx, mempool.Broadcast, mempool.Block)
	if err != nil {
		return err
	}
	sink := in.other
	if err := in.publish(ctx, in.producer, 1, ringSlots); err != nil {
		return err
	}
	if _, err := in.frames(ctx, victim, work.Task{Task: "stream-relay", To: out.name, Count: 2}); err != nil {
		return err
	}
	if _, err := out.take(ctx, sink, work.Task{Oldest: true}, 1, 2); err != nil {
		return err
	}
	if _, err := in.take(ctx, victim, work.Task{Keep: true}, 3, 3); err != nil {
		return err
	}
	victim.kill()
	var got []uint64
	err = together(ctx, func(ctx context.Context) error {
		return errors.Join(in.publish(ctx, in.producer, ringSlots+1, streamFrames), in.close(ctx, in.producer))
	}, func(ctx context.Context) error {
		_, err := in.frames(ctx, in.one, work.Task{Task: "stream-relay", To: out.name})
		return errors.Join(err, out.close(ctx, in.one))
	}, func(ctx context.Context) (err error) {
		got, err = out.rest(ctx, sink)
		return err
	})
	if err != nil {
		return err
	}
	return eachOnce(got, 3, streamFrames)
}
