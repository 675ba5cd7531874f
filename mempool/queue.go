package mempool

import "context"

// Queue is a stream of a GPU, or the CPU. A Queue does its work in order. A session can transfer memory while queues still work on the
// memory. To keep the work in order, this package makes these queues write words of timelines, and makes the queues that use the memory
// afterwards wait for these words.
type Queue interface {
	// wait makes later work in the queue wait for fence `t` of `page`. If the queue is the CPU, the call itself waits, and can return the
	// context's error, ErrContentFailed or ErrProducerDied.
	wait(ctx context.Context, page *Page, t Fence) error
	// signal makes the queue write the word of fence `t` when the present work of the queue is done, so that the fence is reached. The
	// error is ErrUnavailable if the queue cannot write words.
	signal(page *Page, t Fence) error
	// synchronize returns when the present work of the queue is done.
	synchronize() error
	// orderKey returns a key. All queues with the same key do their work in one common order. If the key is nil, no work ever waits in the
	// queue: each call that gives work to the queue returns only when the work is done.
	orderKey() any
}

// CPU is the Queue for work that the caller does itself. It queues nothing: a wait blocks the caller until the fence is reached.
var CPU Queue = cpuQueue{}

type cpuQueue struct{}

func (cpuQueue) wait(ctx context.Context, page *Page, t Fence) error {
	return page.Await(ctx, t)
}

func (cpuQueue) signal(page *Page, t Fence) error {
	page.raise(t.Word, t.Value)
	return nil
}

func (cpuQueue) synchronize() error { return nil }
func (cpuQueue) orderKey() any      { return nil }
