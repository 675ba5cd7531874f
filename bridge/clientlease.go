package bridge

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// Lease is this client's hold on a buffer, mapped in this process.
type Lease struct {
	client *Client

	mu    sync.RWMutex // held to read while the memory is touched
	info  mempool.LeaseInfo
	mem   *mempool.ImportedBlock
	ended bool
}

// LeaseOptions says how to lease a buffer that exists.
type LeaseOptions struct {
	// Write asks for a write lease, which excludes every other.
	Write bool
	// Wait is how long to wait for the name to appear and for leases that exclude this one to end.
	Wait time.Duration
}

// Get leases the buffer that is published under a name.
//
// Errors: [ErrNotFound] (with no wait) or [ErrTimeout], [ErrBusy], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Get(ctx context.Context, name string, o LeaseOptions) (*Lease, error) {
	return c.lease(ctx, &wire.Get{Name: name, Write: o.Write, Wait: wireWait(o.Wait)})
}

// Lease leases a buffer by its id and generation.
//
// Errors: [ErrNotFound], [ErrStale], [ErrBusy], [ErrProducerDied], [ErrDenied], [ErrUnavailable].
func (c *Client) Lease(ctx context.Context, buffer, generation uint64, o LeaseOptions) (*Lease, error) {
	return c.lease(ctx, &wire.Borrow{Buffer: buffer, Generation: generation, Write: o.Write, Wait: wireWait(o.Wait)})
}

func (c *Client) lease(ctx context.Context, r wire.Request) (*Lease, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var reply wire.LeaseReply
	err := c.call(ctx, r, &call{into: &reply,
		files: func(fds *seqpacket.FDs) { c.arrived(reply.Lease, fds) },
		undo:  func() { _ = (&Lease{client: c, info: leaseOf(reply.Lease)}).end(false) }})
	if err != nil {
		return nil, err
	}
	l := &Lease{client: c, info: leaseOf(reply.Lease)}
	p, err := c.pool(ctx, reply.Lease.Pool)
	if err == nil {
		l.mem, err = c.mapped(p, reply.Lease)
	}
	if err != nil {
		return nil, errors.Join(err, l.end(false))
	}
	c.mu.Lock()
	closing := c.closing
	if !closing {
		c.leases[l] = struct{}{}
	}
	c.mu.Unlock()
	if closing {
		return nil, errors.Join(errClientClosed, l.end(false))
	}
	return l, nil
}

// enter counts a caller that makes a lease; Close waits for it to leave.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errClientClosed
	}
	c.busy++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle()
}

// Info describes the lease.
func (l *Lease) Info() mempool.LeaseInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.info
}

// Tensor describes what the buffer holds.
func (l *Lease) Tensor() mempool.Tensor { return l.Info().Tensor }

// with calls f with the buffer's memory, which stays mapped meanwhile.
func (l *Lease) with(off, n uint64, write bool, f func(mempool.Memory) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.ended:
		return situation(ErrReleased, "lease %d has ended", l.info.ID)
	case write && !l.info.Write:
		return situation(ErrInvalid, "lease %d was granted to read; ask for a write lease", l.info.ID)
	case off > l.info.Bytes || n > l.info.Bytes-off:
		return situation(ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, l.info.Bytes)
	}
	m, err := l.mem.Memory(l.info.Write)
	if err != nil {
		return err
	}
	return f(m)
}

// synchronize waits for the work on the memory that was written. l.mu is held.
func (l *Lease) synchronize() error {
	m, err := l.mem.Memory(l.info.Write)
	if err != nil {
		return err
	}
	return m.Synchronize()
}

// CopyFrom copies src to the buffer at off bytes.
//
// Errors: [ErrReleased], [ErrInvalid] if src does not fit or the lease was granted to read.
func (l *Lease) CopyFrom(off uint64, src []byte) error {
	return l.with(off, uint64(len(src)), true, func(m mempool.Memory) error { return m.CopyFrom(off, src) })
}

// CopyTo fills dst from the buffer at off bytes.
//
// Errors: [ErrReleased], [ErrInvalid] if the buffer has not that many bytes.
func (l *Lease) CopyTo(dst []byte, off uint64) error {
	return l.with(off, uint64(len(dst)), false, func(m mempool.Memory) error { return m.CopyTo(dst, off) })
}

// Fill sets n bytes at off to b.
//
// Errors: [ErrReleased], [ErrInvalid].
func (l *Lease) Fill(off, n uint64, b byte) error {
	return l.with(off, n, true, func(m mempool.Memory) error { return m.Fill(off, n, b) })
}

// Bytes is the buffer as the CPU sees it, nil where it cannot reach it. It must not be touched once the lease has ended,
// nor written through a read lease.
//
// Errors: [ErrReleased].
func (l *Lease) Bytes() (b []byte, err error) {
	err = l.with(0, l.Info().Bytes, false, func(m mempool.Memory) error {
		if b = m.Bytes(); b != nil {
			b = b[:l.info.Bytes:l.info.Bytes]
		}
		return nil
	})
	return b, err
}

// Pointer is the buffer's address: a CUDA device pointer for memory on a GPU. It must not be used once the lease has
// ended.
//
// Errors: [ErrReleased].
func (l *Lease) Pointer() (p uintptr, err error) {
	err = l.with(0, 0, false, func(m mempool.Memory) error {
		p = m.Pointer()
		return nil
	})
	return p, err
}

// Publish says that the content is complete: others find the buffer under the name, and the lease becomes a read lease.
// It waits for the work on the buffer that this package started.
//
// Errors: [ErrReleased], [ErrInvalid], [ErrExists], [ErrDenied].
func (l *Lease) Publish(ctx context.Context, p mempool.Publication) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return situation(ErrReleased, "lease %d has ended", l.info.ID)
	}
	if err := l.synchronize(); err != nil {
		return err
	}
	r := &wire.Publish{Lease: l.info.ID, Name: p.Name, Keep: p.Keep, Replace: p.Replace}
	if p.Tensor != nil {
		t := wireTensor(*p.Tensor)
		r.Tensor = &t
	}
	err := l.client.call(ctx, r, &call{into: &wire.EmptyReply{}})
	if _, refused := errors.AsType[*RemoteError](err); err != nil && refused {
		return err
	}
	l.info.Write = false // as far as anybody knows, where no answer came
	if err != nil {
		return err
	}
	if p.Tensor != nil {
		l.info.Tensor = p.Tensor.Clone()
	}
	return nil
}

// Release ends the lease. incomplete says that what a write lease was for did not happen: the buffer has then failed.
//
// Errors: [ErrReleased] if it had ended before.
func (l *Lease) Release(incomplete bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return situation(ErrReleased, "lease %d has ended", l.info.ID)
	}
	var err error
	if l.info.Write {
		err = l.synchronize()
	}
	err = errors.Join(err, l.end(incomplete || err != nil))
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, l) // last: Close waits for the leases that it finds
	return err
}

// end tells the service, and then lets the block go: it may be dropped only once no lease is left.
func (l *Lease) end(incomplete bool) error {
	l.ended = true
	err := l.client.send(0, &wire.Release{Lease: l.info.ID, Failed: incomplete})
	return errors.Join(err, l.client.ended(l.info.Block))
}
