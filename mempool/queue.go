package mempool

import "context"

// Queue is a stream of a GPU, or the CPU. A Queue does its work in order. A transfer does not wait for the work in queues: it makes the
// queues wait for words and write words.
type Queue interface {
	// wait makes later work in the queue wait for a fence of page. Errors, if the call itself waits: the context's error, ErrContentFailed,
	// ErrProducerDied.
	wait(ctx context.Context, page *Page, t Fence) error
	// signal makes page reach the fence when the present work of the queue is done. The error is ErrUnavailable if the queue cannot write
	// words.
	signal(page *Page, t Fence) error
	// synchronize returns when the present work of the queue is done.
	synchronize() error
	// orderKey identifies the order of the queue's work. The work of all queues with the same key is in one common order. nil means that
	// every call does its work before the call returns.
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
