package work

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// numberKey is the key of a frame's number in the metadata of the frame. The content of the frame is the Fibonacci numbers from this
// number on.
const numberKey = "number"

// intake is a subscription that several tasks use.
type intake struct {
	next func() (*bridge.Frame, error, bool)
	stop func()
	kept []*bridge.Frame
}

// subscribed returns the worker's subscription to the channel of the task. The first task that names a channel makes the subscription to
// this channel.
func (w *Worker) subscribed(ctx context.Context, t *Task) (*intake, error) {
	if in := w.intakes[t.Name]; in != nil {
		return in, nil
	}
	ch, err := w.channel(ctx, t.Name, t.timeout())
	if err != nil {
		return nil, err
	}
	in := new(intake)
	in.next, in.stop = iter.Pull2(ch.Frames(ctx, mempool.SubscribeOptions{Oldest: t.Oldest, ManualAck: true}))
	if w.intakes == nil {
		w.intakes = make(map[string]*intake)
	}
	w.intakes[t.Name] = in
	return in, nil
}

// streamTake takes and compares frames: as many frames as the task says, or all frames until the channel is closed. It releases each frame
// after the comparison. If the task has Keep, streamTake keeps the frames until the worker does the task "stream-release".
func (w *Worker) streamTake(ctx context.Context, t *Task) (*Answer, error) {
	in, err := w.subscribed(ctx, t)
	if err != nil {
		return nil, err
	}
	a := &Answer{Mapped: true}
	for range taken(t.Count) {
		f, err := w.takeFrame(ctx, in, a)
		if err != nil {
			return nil, err
		}
		if f == nil {
			a.Ended = true
			break
		}
		if t.Keep {
			in.kept = append(in.kept, f)
		} else if err := f.Release(); err != nil {
			return nil, err
		}
	}
	return a, w.sync(ctx)
}

// taken yields n numbers, or numbers without end if n is 0.
func taken(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; (n == 0 || i < n) && yield(i); i++ {
		}
	}
}

// takeFrame takes a frame, compares it, and adds it to the answer. It returns nil if the channel is closed.
func (w *Worker) takeFrame(ctx context.Context, in *intake, a *Answer) (*bridge.Frame, error) {
	f, err, more := in.next()
	if !more || err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(f.Meta[numberKey], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("frame %d has no number: %w", f.Seq, err)
	}
	a.Numbers, a.Sequence = append(a.Numbers, number), append(a.Sequence, f.Seq)
	a.Missed += f.Dropped
	mapped, err := w.mapped(ctx, f.Lease)
	if err != nil {
		return nil, err
	}
	a.Mapped = a.Mapped && mapped
	return f, w.compareFrame(ctx, f, number, a)
}

func (w *Worker) compareFrame(ctx context.Context, f *bridge.Frame, number uint64, a *Answer) error {
	n, err := f.Lease.Tensor().Elements()
	if err != nil {
		return err
	}
	r, err := w.bench.Verify(ctx, f.Lease, n, Fibonacci(number))
	if err == nil && r.Count > 0 {
		a.Mismatches += r.Count
		a.First = append(a.First, fmt.Sprintf("frame %d: %v", f.Seq, r.Err()))
	}
	return err
}

// streamRelease compares the kept frames once more, and releases them.
func (w *Worker) streamRelease(ctx context.Context, t *Task) (*Answer, error) {
	in, err := w.subscribed(ctx, t)
	if err != nil {
		return nil, err
	}
	a := new(Answer)
	for _, f := range in.kept {
		number, err := strconv.ParseUint(f.Meta[numberKey], 10, 64)
		if err = errors.Join(err, w.compareFrame(ctx, f, number, a), f.Release()); err != nil {
			return nil, err
		}
		a.Numbers = append(a.Numbers, number)
	}
	in.kept = nil
	return a, w.sync(ctx)
}

// streamLeave ends the worker's subscriptions.
func (w *Worker) streamLeave(context.Context, *Task) (*Answer, error) {
	for _, in := range w.intakes {
		in.stop()
	}
	w.intakes = nil
	return &Answer{}, nil
}

// streamPublish publishes frames, and returns how many frames it has published. If the channel cannot take a frame,
// streamPublish stops, and the field Stopped of the answer has the error.
func (w *Worker) streamPublish(ctx context.Context, t *Task) (*Answer, error) {
	ch, err := w.channel(ctx, t.Name, patience)
	if err != nil {
		return nil, err
	}
	p, err := w.pool(ctx, t.Pool, patience)
	if err != nil {
		return nil, err
	}
	a := new(Answer)
	for range t.Count {
		err := w.publishFrame(ctx, p, ch, t, t.Number+uint64(a.Rounds))
		if errors.Is(err, bridge.ErrLimit) {
			a.Stopped = failure(err)
			return a, nil
		}
		if err != nil {
			return nil, err
		}
		a.Rounds++
	}
	return a, nil
}

// publishFrame publishes a frame that contains the Fibonacci numbers from the frame's number on.
func (w *Worker) publishFrame(ctx context.Context, p *bridge.Pool, ch *bridge.Channel, t *Task, number uint64) error {
	l, err := w.allocate(ctx, p, mempool.Tensor{DType: mempool.Uint64, Shape: []uint64{t.Elements}}, patience)
	if err != nil {
		return err
	}
	if err = w.bench.Fill(ctx, l, t.Elements, Fibonacci(number)); err == nil {
		_, err = within(ctx, w, t.timeout(), func(ctx context.Context, _ *bridge.Client) (uint64, error) {
			return ch.Publish(ctx, l, mempool.FrameOptions{Meta: map[string]string{numberKey: strconv.FormatUint(number, 10)}})
		})
		if err == nil {
			return nil
		}
	}
	return errors.Join(err, l.Release(true))
}

// streamClose closes the channel.
func (w *Worker) streamClose(ctx context.Context, t *Task) (*Answer, error) {
	ch, err := w.channel(ctx, t.Name, t.timeout())
	if err != nil {
		return nil, err
	}
	return &Answer{}, ch.Close(ctx)
}

// streamRelay is a stage of a pipeline. It compares each frame of one channel, publishes the same content in another channel, and then
// releases the frame.
func (w *Worker) streamRelay(ctx context.Context, t *Task) (*Answer, error) {
	in, err := w.subscribed(ctx, t)
	if err != nil {
		return nil, err
	}
	to, err := w.channel(ctx, t.To, t.timeout())
	if err != nil {
		return nil, err
	}
	p, err := w.pool(ctx, t.Pool, t.timeout())
	if err != nil {
		return nil, err
	}
	a := &Answer{Mapped: true}
	for range taken(t.Count) {
		f, err := w.takeFrame(ctx, in, a)
		if err != nil {
			return nil, err
		}
		if f == nil {
			a.Ended = true
			break
		}
		if err := w.publishFrame(ctx, p, to, t, a.Numbers[len(a.Numbers)-1]); err != nil {
			return nil, errors.Join(err, f.Release())
		}
		if err := f.Release(); err != nil {
			return nil, err
		}
	}
	return a, w.sync(ctx)
}

// sync returns when the service has handled all releases that the worker has sent. The service handles the requests of a session in order,
// but does not answer a release. So sync sends another request and waits for the answer.
func (w *Worker) sync(ctx context.Context) error {
	_, err := w.client.Stats(ctx)
	return err
}
