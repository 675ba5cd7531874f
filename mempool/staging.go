package mempool

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
)

// This package copies between memory of the Go heap and a GPU through pieces of page-locked memory. While the GPU copies one piece, the CPU
// copies the next piece. The bus is fastest with large pieces (on an H200: 51 GB/s with pieces of 2 MiB, 55 GB/s with pieces of 16 MiB).
// One core copies slower than the bus, so several cores fill a piece together.
const (
	largePiece  = 16 << 20
	largePieces = 4
	fetchBytes  = 4 << 20 // bytes copied from the GPU at a time, while the CPU empties the previous piece
	smallPiece  = 256 << 10
	smallPieces = 8
)

// stagingPlan configures staging.
type stagingPlan struct {
	piece  uint64 // bytes of a large piece
	pieces int    // greatest number of large pieces
	copying
}

// plan is the staging plan that each new device stream gets. With this plan, on a host with an H200, copies of frames of 16 MiB reached
// 0.95 to 0.99 of the rate of copies without staging. The processor of this host has fast string copies (FSRM). Go uses these copies, which
// write into the caches. On many other processors, a Go copy of one mebibyte or more bypasses the caches. On the measured host, other
// settings reached less of that rate: 0.82 with copies that bypass the caches, 0.86 with two streams that were used alternately, 0.87 with
// pieces of 4 MiB, and 0.94 with 12 goroutines instead of 8.
var plan = stagingPlan{
	piece: largePiece, pieces: largePieces,
	copying: copying{stripe: 1 << 20, together: 8, vigil: 100 * time.Microsecond},
}

// staging is the page-locked memory through which a deviceStream copies. It has large pieces, and small pieces for small copies.
type staging struct {
	deviceStream *deviceStream
	copiers      copiers
	large, small pieces
}

// pieces has the pieces of one size. Copies use these pieces one after the other.
type pieces struct {
	size uint64
	most int

	mu    sync.Mutex
	freed *sync.Cond
	made  int
	idle  []*piece // the piece that the GPU finishes first is in front
}

// piece is page-locked memory, with an event that marks the end of the GPU's last copy to or from this memory.
type piece struct {
	mem  *cuda.Pinned
	done *cuda.Event
}

func newPiece(ctx *cuda.Context, size uint64) (*piece, error) {
	mem, err := ctx.NewPinned(size)
	if err != nil {
		return nil, err
	}
	done, err := ctx.NewEvent(cuda.EventSpec{})
	if err != nil {
		return nil, errors.Join(err, insist(mem.Close))
	}
	return &piece{mem, done}, nil
}

func (p *piece) close() error { return errors.Join(p.done.Close(), p.mem.Close()) }

func (s *staging) open(l *deviceStream) {
	s.deviceStream = l
	s.copiers.how = plan.copying
	s.large = pieces{size: plan.piece, most: plan.pieces}
	s.small = pieces{size: smallPiece, most: smallPieces}
	for _, p := range []*pieces{&s.large, &s.small} {
		p.freed = sync.NewCond(&p.mu)
	}
}

// take takes a piece that no caller holds. If the GPU still copies to or from this piece, take makes another piece, or waits for the GPU if
// no more pieces may be made. If callers hold all pieces, take waits for a piece if `wait` is true, and returns nil if `wait` is false. A
// caller that holds a piece must set `wait` to false: otherwise, callers that hold all pieces could wait for each other forever.
func (ps *pieces) take(ctx *cuda.Context, wait bool) (*piece, error) {
	ps.mu.Lock()
	for len(ps.idle) == 0 && ps.made == ps.most {
		if !wait {
			ps.mu.Unlock()
			return nil, nil
		}
		ps.freed.Wait()
	}
	if len(ps.idle) == 0 {
		return ps.makeOne(ctx)
	}
	p := ps.idle[0]
	done, err := p.done.Query()
	if err == nil && !done && ps.made < ps.most {
		return ps.makeOne(ctx)
	}
	ps.idle = ps.idle[1:]
	ps.mu.Unlock()
	if err == nil && !done {
		err = p.done.Synchronize()
	}
	if err != nil {
		ps.put(p)
		return nil, err
	}
	return p, nil
}

// makeOne makes a piece. The caller holds ps.mu, and makeOne releases that mutex.
func (ps *pieces) makeOne(ctx *cuda.Context) (*piece, error) {
	ps.made++
	ps.mu.Unlock()
	p, err := newPiece(ctx, ps.size)
	if err == nil {
		return p, nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.made--
	ps.freed.Signal()
	return nil, err
}

func (ps *pieces) put(p *piece) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.idle = append(ps.idle, p)
	ps.freed.Signal()
}

// lose stops counting a piece that the GPU may still use: no copy uses this piece again.
func (ps *pieces) lose() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.most--
	ps.made--
	ps.most = max(ps.most, 1)
	ps.freed.Signal()
}

func (ps *pieces) close() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	ps.idle = slices.DeleteFunc(ps.idle, func(p *piece) bool {
		err := p.close()
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// mark records the piece's event in the stream, after the copy that the caller has queued. If the driver fails to record the event, mark
// waits for the copy. If the wait fails too, mark does not return the piece to `ps`, so no later copy uses the piece: the queued copy may
// still use it.
func (s *staging) mark(ps *pieces, p *piece) error {
	err := p.done.Record(s.deviceStream.stream)
	if err == nil {
		return nil
	}
	if waited := s.deviceStream.stream.Synchronize(); waited != nil {
		ps.lose()
		return errors.Join(err, waited)
	}
	ps.put(p)
	return err
}

// close frees the pieces. It keeps the pieces that the driver fails to free. The deviceStream must have finished its work.
func (s *staging) close() error {
	s.copiers.close()
	return errors.Join(s.large.close(), s.small.close())
}

// fitting returns the pieces for a copy of n bytes.
func (s *staging) fitting(n int) *pieces {
	if n <= smallPiece {
		return &s.small
	}
	return &s.large
}

// copyFrom queues a copy of src to dst. The caller may change src after copyFrom has returned.
func (l *deviceStream) copyFrom(dst cuda.DevicePtr, src []byte) error {
	ps := l.staging.fitting(len(src))
	for len(src) > 0 {
		p, err := ps.take(l.ctx, true)
		if err != nil {
			return err
		}
		n := l.staging.copiers.copy(p.mem.Bytes(), src)
		if err := l.stream.CopyHtoDAsync(dst, p.mem, 0, uint64(n)); err != nil {
			ps.put(p)
			return err
		}
		if err := l.staging.mark(ps, p); err != nil {
			return err
		}
		ps.put(p)
		src, dst = src[n:], dst+cuda.DevicePtr(n)
	}
	return nil
}

// copyTo copies src to dst after the work that is already queued in the stream, and returns when dst is filled. While the CPU empties a
// piece, the GPU fills the next piece.
func (l *deviceStream) copyTo(dst []byte, src cuda.DevicePtr) error {
	ps := l.staging.fitting(len(dst))
	fetch := func(n int, wait bool) (*piece, error) {
		p, err := ps.take(l.ctx, wait)
		if p == nil {
			return nil, err
		}
		if err := l.stream.CopyDtoHAsync(p.mem, 0, src, uint64(n)); err != nil {
			ps.put(p)
			return nil, err
		}
		if err := l.staging.mark(ps, p); err != nil {
			return nil, err
		}
		src += cuda.DevicePtr(n)
		return p, nil
	}
	var next *piece
	for len(dst) > 0 {
		p, n := next, min(len(dst), int(ps.size), fetchBytes)
		var err error
		if p == nil {
			if p, err = fetch(n, true); err != nil {
				return err
			}
		}
		next = nil
		if rest := min(len(dst)-n, int(ps.size), fetchBytes); rest > 0 {
			next, err = fetch(rest, false)
		}
		if err == nil {
			err = p.done.Synchronize()
		}
		if err == nil {
			l.staging.copiers.copy(dst[:n], p.mem.Bytes())
		}
		ps.put(p)
		if err != nil {
			if next != nil {
				ps.put(next)
			}
			return err
		}
		dst = dst[n:]
	}
	return nil
}
