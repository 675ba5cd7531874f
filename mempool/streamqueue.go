package mempool

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// streamQueue is a stream of a GPU.
type streamQueue struct {
	ctx    *cuda.Context
	stream *cuda.Stream
	key    any
	words  bool // the stream can write and wait for words of registered memory
}

// StreamQueue returns a stream of the caller as a [Queue]. Call StreamQueue only once for a stream: a timeline needs a word for each Queue.
// When the caller does not use the stream any more, [Clock.Forget] frees the word. The stream must live until its work is done.
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

// wait makes the stream wait for the fence. If the stream cannot wait for words, the call itself waits on the CPU.
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

// begin queues an operation on a word in the stream. Page.Close waits for the stream before it unmaps the page.
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
		return 0, situation.Of(ErrUnavailable, "GPU %d has no stream memory operations on host memory", q.ctx.Device().Ordinal())
	}
	return page.gpu.address(page, q, t.Word)
}

func (q *streamQueue) synchronize() error {
	return deviceError("wait for the GPU", q.stream.Synchronize())
}

// ruined reports whether the stream will do no more work because its GPU is broken.
func (q *streamQueue) ruined() bool {
	_, err := q.stream.Query()
	return cuda.Hopeless(err)
}

func (q *streamQueue) orderKey() any { return q.key }
