package mempool

import "context"

// Queue does work in order: a stream of a GPU, or the CPU. A transfer does not wait for queues: it makes them wait for words and write
// words.
type Queue interface {
	// wait makes later work in the queue wait for a fence of page. Errors: the context's and ErrProducerDied, from queues that wait
	// in the call itself.
	wait(ctx context.Context, page *Page, t Fence) error
	// signal makes page reach the fence when the present work of the queue is done. ErrUnavailable if the queue cannot do it.
	signal(page *Page, t Fence) error
	// synchronize returns when the present work of the queue is done.
	synchronize() error
	// orderKey identifies the order of the queue's work. Queues with the same key are in order with each other. nil: work is done
	// when the call that asks for it returns.
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
