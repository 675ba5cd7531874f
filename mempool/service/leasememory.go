package service

import (
	"context"

	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file is how the service's own process reaches the memory of its leases. Bridge clients have the same methods.

// Memory is the memory of the buffer's block, for use in the service's own process while the lease lasts. It checks
// nothing; the methods of the lease do.
//
// Errors: [mempool.ErrReleased].
func (l *Lease) Memory() (mempool.Memory, error) {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if l.ended {
		return nil, l.released()
	}
	return l.buffer.block.mem, nil
}

// ordering is the order of the lease's memory in this process. A session of another one sees to that itself.
func (l *Lease) ordering() *mempool.Order {
	if l.order == nil {
		return new(mempool.Order)
	}
	return l.order
}

// with calls f with the memory of the buffer's block, which serves nobody else meanwhile even if the lease ends.
func (l *Lease) with(off, n uint64, write bool, f func(mempool.Memory) error) error {
	b := l.buffer.block
	if err := l.hold(off, n, write); err != nil {
		return err
	}
	defer func() {
		svc := l.session.svc
		svc.mu.Lock()
		defer svc.unlock()
		b.pool.unhold(b)
	}()
	m := b.mem
	if n > 0 { // else who asks says how it waits
		if err := l.ordering().Before(context.Background(), m.Queue()); err != nil {
			return err
		}
	}
	if write {
		l.ordering().Use()
	}
	return f(m)
}

// hold holds the block if n bytes at off may be touched now.
func (l *Lease) hold(off, n uint64, write bool) error {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	size := l.buffer.bytes
	switch {
	case l.ended:
		return l.released()
	case write && !l.write:
		return situation.Of(mempool.ErrInvalid, "lease %d was granted to read; ask for a write lease", l.id)
	case off > size || n > size-off:
		return situation.Of(mempool.ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, size)
	}
	l.buffer.block.holds++
	return nil
}

// CopyFrom copies src to the buffer at off bytes.
//
// Errors: [mempool.ErrReleased], [mempool.ErrInvalid] if src does not fit or the lease was granted to read.
func (l *Lease) CopyFrom(off uint64, src []byte) error {
	return l.with(off, uint64(len(src)), true, func(m mempool.Memory) error { return m.CopyFrom(off, src) })
}

// CopyTo fills dst from the buffer at off bytes.
//
// Errors: [mempool.ErrReleased], [mempool.ErrInvalid] if the buffer has not that many bytes.
func (l *Lease) CopyTo(dst []byte, off uint64) error {
	return l.with(off, uint64(len(dst)), false, func(m mempool.Memory) error {
		if err := m.CopyTo(dst, off); err != nil {
			return err
		}
		return l.ordering().Check(context.Background())
	})
}

// Fill sets n bytes at off to b.
//
// Errors: [mempool.ErrReleased], [mempool.ErrInvalid].
func (l *Lease) Fill(off, n uint64, b byte) error {
	return l.with(off, n, true, func(m mempool.Memory) error { return m.Fill(off, n, b) })
}

// Bytes is the buffer as the CPU sees it, nil where it cannot reach it, once it may be touched. It must not be touched
// once the lease has ended, nor written through a read lease.
//
// Errors: [mempool.ErrReleased], [mempool.ErrTimeout] and [mempool.ErrProducerDied] from waiting for who works on it.
func (l *Lease) Bytes() (b []byte, err error) {
	err = l.with(0, 0, false, func(m mempool.Memory) error {
		if b = m.Bytes(); b == nil {
			return nil
		}
		b = b[:l.buffer.bytes:l.buffer.bytes]
		return l.ordering().Before(context.Background(), mempool.CPU)
	})
	return b, err
}

// Pointer is the buffer's address: a CUDA device pointer for memory on a GPU. It must not be used once the lease has
// ended. Unless a queue was made to wait for what must happen first ([Lease.WaitOn]), this waits for it.
//
// Errors: [mempool.ErrReleased], [mempool.ErrTimeout] and [mempool.ErrProducerDied] from waiting.
func (l *Lease) Pointer() (uintptr, error) {
	m, err := l.Memory()
	if err == nil {
		err = l.ordering().AwaitAccess(context.Background(), m)
	}
	if err != nil {
		return 0, err
	}
	return m.Pointer(), nil
}

// WaitOn makes what comes next in a queue come after all that must happen before the memory is used, and after what the
// lease did with it; on [mempool.CPU] it waits.
// What the queue does with the memory is named when the lease ends: see [Lease.ReleaseAfter] and [mempool.Completion].
//
// Errors: [mempool.ErrReleased]; from queues that wait here, [mempool.ErrTimeout], [mempool.ErrProducerDied] and the context's.
func (l *Lease) WaitOn(ctx context.Context, q mempool.Queue) error {
	m, err := l.Memory()
	if err != nil {
		return err
	}
	return l.ordering().Give(ctx, m.Queue(), q)
}

// ReadyEvent is the interprocess event that came with the content, opened for as long as the lease lasts; nil if none did.
// What the lease does itself, and queues that WaitOn was told of, wait for it where they have to.
//
// Errors: as [mempool.OpenEvent]. What has a fence besides can be used all the same.
func (l *Lease) ReadyEvent() (*mempool.Event, error) { return l.ordering().Event() }

// Check says whether what the lease was told to wait for did happen. On a GPU a wait ends too when the process that it
// was for has died: look before you trust what came out.
//
// Errors: [mempool.ErrProducerDied].
func (l *Lease) Check(ctx context.Context) error {
	svc := l.session.svc
	svc.mu.Lock()
	failed := l.buffer.failed && !l.write
	svc.mu.Unlock()
	if failed {
		return situation.Of(mempool.ErrProducerDied, "buffer %d is incomplete: the process that wrote it died before finishing", l.buffer.id)
	}
	return l.ordering().Check(ctx)
}

// completed is when the content of the lease's buffer is complete; nil if it is.
func (l *Lease) completed(c mempool.Completion) (*mempool.Fence, error) {
	if l.session.notify != nil { // another process says so itself
		return c.Ready, nil
	}
	m, err := l.Memory()
	if err != nil {
		return nil, err
	}
	return l.order.Ready(context.Background(), m.Queue(), c)
}

// fences ends the use of the memory in this process: of what the lease did, and of the queues that are named.
func (l *Lease) fences(after ...mempool.Queue) ([]mempool.Fence, error) {
	if l.session.notify != nil { // another process makes its own
		return nil, nil
	}
	m, err := l.Memory()
	if err != nil {
		return nil, err
	}
	return l.order.After(context.Background(), m.Queue(), after...)
}

// Tensor describes what the buffer holds.
func (l *Lease) Tensor() mempool.Tensor { return l.Info().Tensor }
