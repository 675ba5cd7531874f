package mempool

import "context"

// Queue is a line in which work is done in order: a stream of a GPU, or the CPU. A transfer makes a queue wait for words,
// and write one, instead of waiting for the queue.
type Queue interface {
	// wait makes what comes next in the queue wait for the fence of page. Errors: ErrTimeout and ErrProducerDied, from
	// queues that wait in the call itself.
	wait(ctx context.Context, page *Page, t Fence) error
	// signal makes page reach the fence once what is in the queue now is done. ErrUnavailable where the queue cannot.
	signal(page *Page, t Fence) error
	// synchronize returns when what is in the queue is done.
	synchronize() error
	// key tells queues apart whose work is ordered by itself; nil: work is done when the call returns that asks for it.
	orderKey() any
}

// CPU is the queue of what the caller does itself.
var CPU Queue = cpuQueue{}

type cpuQueue struct{}

func (cpuQueue) wait(ctx context.Context, page *Page, t Fence) error {
	return page.Await(ctx, t, OrderLimit)
}

func (cpuQueue) signal(page *Page, t Fence) error {
	page.raise(t.Word, t.Value)
	return nil
}

func (cpuQueue) synchronize() error { return nil }
func (cpuQueue) orderKey() any      { return nil }
