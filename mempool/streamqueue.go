package mempool

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// streamQueue is the [Queue] of a CUDA stream: the stream itself waits for fences and reaches them, if its GPU can.
type streamQueue struct {
	ctx    *cuda.Context
	stream *cuda.Stream
	key    any
	words  bool // the stream can write and wait for words of registered memory
}

// StreamQueue returns a [Queue] for a stream of the caller. Call StreamQueue only once for a stream, because each Queue needs its own word
// of a timeline. When the caller does not use the stream any more, the caller must call [Clock.Forget], which frees the word. The caller
// must not destroy the stream before the stream's work is done.
func StreamQueue(ctx *cuda.Context, s *cuda.Stream) Queue {
	q := newStreamQueue(ctx, s, nil)
	q.key = q
	return q
}

func newStreamQueue(ctx *cuda.Context, s *cuda.Stream, key any) *streamQueue {
	d := ctx.Device()
	words, err := d.SupportsStreamMemOps()
	register, _, err2 := d.SupportsHostRegister()
	return &streamQueue{ctx: ctx, stream: s, key: key, words: words && register && err == nil && err2 == nil}
}

// wait makes the stream wait for the fence. If the stream cannot wait for words, this call itself waits until the fence is reached.
func (q *streamQueue) wait(ctx context.Context, page *Page, t Fence) error {
	err := q.begin(page, t, "make a stream wait", q.stream.WaitValue64GEQ)
	if errors.Is(err, ErrUnavailable) {
		return page.Await(ctx, t)
	}
	return err
}

func (q *streamQueue) signal(page *Page, t Fence) error {
	return q.begin(page, t, "make a stream write a word", q.stream.WriteValue64)
}

// begin queues in the stream an operation on the word of a fence: a wait or a write. Page.Close waits for the stream before Page.Close
// unmaps the page.
func (q *streamQueue) begin(page *Page, t Fence, op string, do func(cuda.DevicePtr, uint64) error) error {
	if err := page.use(t.Timeline); err != nil {
		return err
	}
	defer page.life.RUnlock()
	ptr, err := q.address(page, t)
	if err != nil {
		return err
	}
	return deviceError(op, do(ptr, t.Value))
}

func (q *streamQueue) address(page *Page, t Fence) (cuda.DevicePtr, error) {
	if !q.words {
		return 0, typed.Errorf(ErrUnavailable, "GPU %d has no stream memory operations on host memory", q.ctx.Device().Ordinal())
	}
	return page.gpu.address(page, q, t.Word)
}

func (q *streamQueue) synchronize() error {
	return deviceError("wait for the GPU", q.stream.Synchronize())
}

// ruined reports whether the stream will never do the rest of its work: its context or its GPU is broken, or the driver has ended.
func (q *streamQueue) ruined() bool {
	_, err := q.stream.Query()
	return cuda.Hopeless(err)
}

func (q *streamQueue) orderKey() any { return q.key }
