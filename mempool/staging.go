package mempool

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/poolbridge/poolbridge/cuda"
)

// How memory of Go is copied to and from a GPU: in pieces through page-locked memory, by several goroutines, while the GPU
// fetches the pieces before. One core copies slower than the bus.
const (
	pieceBytes = 2 << 20
	maxPieces  = 16
	maxCopiers = 8
)

// staging is page-locked memory that a lane copies through. The lane's stream counts the pieces that it is done with in a
// word, which the CPU watches: a call of the driver for each would cost more than copying it.
type staging struct {
	lane *lane

	mu    sync.Mutex
	freed sync.Cond
	made  int
	idle  []*piece // the one that the GPU is done with first in front

	queue sync.Mutex   // held from queueing a piece's copy to queueing its count
	word  *cuda.Pinned // nil where the stream cannot write words
	count *atomic.Uint64
	last  uint64 // that was queued; guarded by queue
}

// piece is page-locked memory and the count from which on the GPU does not use it.
type piece struct {
	mem  *cuda.Pinned
	free uint64
}

func (s *staging) open(l *lane) error {
	s.lane, s.freed.L = l, &s.mu
	s.count = new(atomic.Uint64)
	if !l.queue.words {
		return nil
	}
	word, err := l.ctx.NewPinned(8)
	if err != nil {
		return err
	}
	s.word, s.count = word, (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(word.Bytes())))
	s.count.Store(0)
	return nil
}

// take takes a piece that nobody uses. It waits for the GPU only when there are as many as there may be.
func (s *staging) take() (*piece, error) {
	s.mu.Lock()
	for len(s.idle) == 0 && s.made == maxPieces {
		s.freed.Wait()
	}
	if len(s.idle) > 0 && (s.idle[0].free <= s.count.Load() || s.made == maxPieces) {
		p := s.idle[0]
		s.idle = s.idle[1:]
		s.mu.Unlock()
		if err := s.await(p.free); err != nil {
			s.put(p)
			return nil, err
		}
		return p, nil
	}
	s.made++
	s.mu.Unlock()
	mem, err := s.lane.ctx.NewPinned(pieceBytes)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.made--
		s.freed.Signal()
		return nil, err
	}
	return &piece{mem: mem}, nil
}

func (s *staging) put(p *piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, p)
	s.freed.Signal()
}

// begin queues a copy and its count.
func (s *staging) begin(p *piece, copyAsync func() error) error {
	s.queue.Lock()
	defer s.queue.Unlock()
	if err := copyAsync(); err != nil {
		return err
	}
	s.last++
	p.free = s.last
	if s.word != nil && s.lane.stream.WriteValue64(s.word.DevicePtr(), s.last) == nil {
		return nil
	}
	err := s.lane.stream.Synchronize()
	if err == nil { // otherwise the GPU may still use the piece
		s.count.Store(s.last)
	}
	return err
}

// How await waits: the GPU tells nobody.
const (
	busyLooks   = 20000
	firstRest   = 20 * time.Microsecond
	longestRest = time.Millisecond
)

// await returns when the GPU has counted so far.
func (s *staging) await(count uint64) error {
	for i := range busyLooks {
		if s.count.Load() >= count {
			return nil
		}
		if i%1000 == 999 {
			runtime.Gosched()
		}
	}
	for rest := firstRest; ; rest = min(2*rest, longestRest) {
		done, err := s.lane.stream.Query()
		if err != nil || s.count.Load() >= count {
			return err
		}
		if done {
			return situation(ErrInternal, "the GPU has counted %d copies, not %d", s.count.Load(), count)
		}
		time.Sleep(rest)
	}
}

// close gives the memory back, and keeps what the driver does not take. The lane's work is done.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	s.idle = slices.DeleteFunc(s.idle, func(p *piece) bool {
		err := p.mem.Close()
		errs = append(errs, err)
		return err == nil
	})
	if s.word != nil {
		errs = append(errs, s.word.Close())
	}
	return errors.Join(errs...)
}

// copyFrom queues a copy of src, which may be used again when it returns.
func (l *lane) copyFrom(dst cuda.DevicePtr, src []byte) error {
	return l.inPieces(len(src), func(p *piece, from, to int) error {
		n := uint64(copy(p.mem.Bytes(), src[from:to]))
		return l.staging.begin(p, func() error { return l.stream.CopyHtoDAsync(dst+cuda.DevicePtr(from), p.mem, 0, n) })
	})
}

// copyTo copies what src is after the work that is queued, and returns when dst is filled.
func (l *lane) copyTo(dst []byte, src cuda.DevicePtr) error {
	return l.inPieces(len(dst), func(p *piece, from, to int) error {
		err := l.staging.begin(p, func() error { return l.stream.CopyDtoHAsync(p.mem, 0, src+cuda.DevicePtr(from), uint64(to-from)) })
		if err == nil {
			err = l.staging.await(p.free)
		}
		if err == nil {
			copy(dst[from:to], p.mem.Bytes())
		}
		return err
	})
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
