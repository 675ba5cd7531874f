package mempool

import (
	"context"
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// Upload fills memory of a GPU through pieces of page-locked memory, in a stream of its own: while the GPU copies some pieces, several goroutines
// fill other pieces. It is the way to copy data that is not in memory yet, such as the content of a file.
type Upload struct {
	ctx    *cuda.Context
	stream *cuda.Stream
	to     cuda.DevicePtr
	bytes  uint64        // of the memory
	size   uint64        // of a piece
	room   chan struct{} // has an element for each piece that may still be made
	free   chan *uploaded
	queued chan *uploaded // pieces that the GPU copies; reap takes them
	reaped chan struct{}

	making sync.Mutex // locked while a piece is made
	made   bool       // whether there is a piece
}

// uploaded is a piece of an Upload.
type uploaded struct {
	*piece
	arrived func()
	err     error // of the last copy; the next caller that takes the piece returns it
}

// NewUpload begins to fill the first `bytes` bytes of m. The memory must be ready for use, and must stay so until Close returns. NewUpload makes a
// stream, so the driver can make it wait: see [cuda.Context.NewStream]. The first calls of Copy make at most `pieces` pieces of `size` bytes, or as many
// as there is page-locked memory for.
//
// Errors: [ErrInvalid] if the CPU can access the memory, because no copy is necessary then, or if there would be no piece; the driver's errors.
func NewUpload(m Memory, bytes, size uint64, pieces int) (*Upload, error) {
	q, ok := m.Queue().(*streamQueue)
	if !ok || size == 0 || pieces < 1 {
		return nil, typed.Errorf(ErrInvalid, "an upload through %d pieces of %d bytes needs pieces, and memory that the CPU does not reach", pieces, size)
	}
	stream, err := q.ctx.NewStream()
	if err != nil {
		return nil, deviceError("make a stream", err)
	}
	u := &Upload{
		ctx: q.ctx, stream: stream, to: cuda.DevicePtr(m.Pointer()), bytes: bytes, size: size, room: make(chan struct{}, pieces),
		free: make(chan *uploaded, pieces), queued: make(chan *uploaded, pieces), reaped: make(chan struct{}),
	}
	for range pieces {
		u.room <- struct{}{}
	}
	go u.reap()
	return u, nil
}

// Copy waits for a piece, calls `fill` with its first n bytes, and queues the copy of these bytes to the memory at the offset `off`. Another goroutine
// calls `arrived` when the copy is done; `arrived` must not block. Several goroutines may call Copy at the same time.
//
// Errors: [ErrInvalid] if the bytes do not fit into the memory or into a piece; the error of `fill`; the context's error if Copy had to wait; the
// driver's errors, also those of an earlier copy.
func (u *Upload) Copy(ctx context.Context, off, n uint64, fill func([]byte) error, arrived func()) error {
	if n > u.size || off > u.bytes || n > u.bytes-off {
		return typed.Errorf(ErrInvalid, "%d bytes at %d do not fit into a piece of %d and memory of %d", n, off, u.size, u.bytes)
	}
	p, err := u.take(ctx)
	if err != nil {
		return err
	}
	if err, p.err = p.err, nil; err == nil {
		err = u.send(p, off, n, fill)
	}
	if err != nil {
		u.free <- p // the GPU may still copy it; what arrives there is void, as the error says
		return err
	}
	p.arrived = arrived
	u.queued <- p
	return nil
}

func (u *Upload) take(ctx context.Context) (*uploaded, error) {
	select {
	case p := <-u.free: // rather than make another piece
		return p, nil
	default:
	}
	select {
	case p := <-u.free:
		return p, nil
	case <-u.room:
		if p, err := u.another(); p != nil || err != nil {
			return p, err
		}
		return u.take(ctx)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// another makes a piece. It returns nil if there is no memory for one more than there are.
func (u *Upload) another() (*uploaded, error) {
	u.making.Lock()
	defer u.making.Unlock()
	p, err := newPiece(u.ctx, u.size)
	switch {
	case err == nil:
		u.made = true
		return &uploaded{piece: p}, nil
	case u.made && errors.Is(err, cuda.ErrOutOfMemory):
		return nil, nil
	}
	u.room <- struct{}{}
	return nil, deviceError("allocate page-locked memory", err)
}

func (u *Upload) send(p *uploaded, off, n uint64, fill func([]byte) error) error {
	if err := fill(p.mem.Bytes()[:n]); err != nil || n == 0 {
		return err
	}
	err := u.stream.CopyHtoDAsync(u.to+cuda.DevicePtr(off), p.mem, 0, n)
	if err == nil {
		err = p.done.Record(u.stream)
	}
	return deviceError("copy to the GPU", err)
}

// reap waits for the copies in turn, so that only one thread waits in the driver.
func (u *Upload) reap() {
	defer close(u.reaped)
	for p := range u.queued {
		if p.err = deviceError("copy to the GPU", p.done.Synchronize()); p.err == nil {
			p.arrived()
		}
		u.free <- p
	}
}

// Close waits until all copies are done, and frees the pieces; the driver frees page-locked memory when all streams of the GPU's context are idle,
// and so Close waits for these, too. All calls of Copy must have returned. If Close cannot wait for the copies, it keeps the pieces, because the GPU
// may still use them. Call Close once.
//
// Errors: the driver's errors, also those of copies.
func (u *Upload) Close() error {
	close(u.queued)
	<-u.reaped
	if err := insist(u.stream.Synchronize); err != nil && !cuda.Hopeless(err) {
		return deviceError("wait for copies", err)
	}
	close(u.free)
	var errs []error
	for p := range u.free {
		errs = append(errs, p.err, deviceError("free page-locked memory", insist(p.close)))
	}
	return errors.Join(append(errs, deviceError("end a stream", insist(u.stream.Close)))...)
}
