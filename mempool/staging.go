package mempool

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda"
)

// How memory of Go is copied to and from a GPU: in pieces through page-locked memory, by several goroutines, while the GPU
// fetches the pieces before. One core copies slower than the bus.
const (
	pieceBytes = 2 << 20
	maxPieces  = 16
	maxCopiers = 8
)

// staging is page-locked memory that a lane copies through.
type staging struct {
	lane *lane

	mu    sync.Mutex
	made  int
	freed *sync.Cond
	idle  []*piece // oldest first: the GPU is done with it soonest
}

// piece is page-locked memory with a mark of when the GPU is done with it.
type piece struct {
	mem  *cuda.Pinned
	done *cuda.Event
}

// take takes a piece that nobody uses. It waits for the GPU only when there are as many as there may be.
func (s *staging) take() (*piece, error) {
	s.mu.Lock()
	if s.freed == nil {
		s.freed = sync.NewCond(&s.mu)
	}
	for {
		if len(s.idle) > 0 {
			p := s.idle[0]
			done, err := p.done.Query()
			if done || err != nil || s.made == maxPieces {
				s.idle = s.idle[1:]
				s.mu.Unlock()
				if !done && err == nil {
					err = p.done.Synchronize()
				}
				if err != nil {
					s.put(p)
					return nil, err
				}
				return p, nil
			}
		}
		if s.made < maxPieces {
			s.made++
			s.mu.Unlock()
			p, err := s.lane.newPiece()
			if err != nil {
				s.mu.Lock()
				s.made--
				s.freed.Signal()
				s.mu.Unlock()
			}
			return p, err
		}
		s.freed.Wait()
	}
}

func (s *staging) put(p *piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, p)
	s.freed.Signal()
}

func (l *lane) newPiece() (*piece, error) {
	mem, err := l.ctx.NewPinned(pieceBytes)
	if err != nil {
		return nil, err
	}
	done, err := l.ctx.NewEvent(cuda.EventSpec{})
	if err != nil {
		return nil, errors.Join(err, insist(mem.Close))
	}
	return &piece{mem, done}, nil
}

// close gives the memory back, and keeps what the driver does not take. The lane's work is done.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	s.idle = slices.DeleteFunc(s.idle, func(p *piece) bool {
		err := errors.Join(p.done.Close(), p.mem.Close())
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// copyFrom queues a copy of src, which may be used again when it returns.
func (l *lane) copyFrom(dst cuda.DevicePtr, src []byte) error {
	return l.inPieces(len(src), func(p *piece, from, to int) error {
		n := uint64(copy(p.mem.Bytes(), src[from:to]))
		if err := l.stream.CopyHtoDAsync(dst+cuda.DevicePtr(from), p.mem, 0, n); err != nil {
			return err
		}
		return l.marked(p.done.Record(l.stream))
	})
}

// copyTo copies what src is after the work that is queued, and returns when dst is filled.
func (l *lane) copyTo(dst []byte, src cuda.DevicePtr) error {
	return l.inPieces(len(dst), func(p *piece, from, to int) error {
		if err := l.stream.CopyDtoHAsync(p.mem, 0, src+cuda.DevicePtr(from), uint64(to-from)); err != nil {
			return err
		}
		if err := l.marked(p.done.Record(l.stream)); err != nil {
			return err
		}
		if err := l.marked(p.done.Synchronize()); err != nil {
			return err
		}
		copy(dst[from:to], p.mem.Bytes())
		return nil
	})
}

// marked waits for a copy whose mark failed: the piece must not be used again before it is done.
func (l *lane) marked(err error) error {
	if err != nil {
		return errors.Join(err, l.stream.Synchronize())
	}
	return nil
}

// inPieces calls one for each piece of n bytes, from several goroutines if there are several.
func (l *lane) inPieces(n int, one func(p *piece, from, to int) error) error {
	pieces := (n + pieceBytes - 1) / pieceBytes
	var next atomic.Int64
	var failed atomic.Pointer[error]
	work := func() {
		for {
			from := int(next.Add(1)-1) * pieceBytes
			if from >= n || failed.Load() != nil {
				return
			}
			p, err := l.staging.take()
			if err == nil {
				err = one(p, from, min(from+pieceBytes, n))
				l.staging.put(p)
			}
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		}
	}
	var others sync.WaitGroup
	for range min(pieces, maxCopiers, runtime.GOMAXPROCS(0)) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
