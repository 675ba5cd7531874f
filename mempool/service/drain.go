package service

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file polls the fences of blocks that the service can free or reuse only when the GPU work on them is done. The service must poll,
// because a stream that writes a word of a timeline does not notify the service. A goroutine polls as long as there is such a block. The
// first pause between two polls is drainPause. The pauses grow up to drainRest.
const (
	drainPause = 100 * time.Microsecond
	drainRest  = 10 * time.Millisecond
)

// These constants limit how many blocks recharge checks in one call, because all sessions wait for Service.mu during the call. If at most
// fewCharged blocks count for processes, every call checks all these blocks. If more blocks count, recharge checks blocks at most once in
// the time drainRest, and then at most manyCharged of them.
const (
	fewCharged  = 64
	manyCharged = 1024
)

// drain calls next, with Service.mu held, once no GPU work uses b any more. The caller of drain holds Service.mu.
func (s *Service) drain(b *ledger.Block, next func()) {
	if s.draining == nil {
		s.draining = make(map[*ledger.Block]func())
	}
	s.draining[b] = next
	if len(s.draining) == 1 {
		s.drains.Go(s.drainAll)
	}
}

func (s *Service) drainAll() {
	for pause := drainPause; ; pause = min(2*pause, drainRest) {
		time.Sleep(pause)
		s.mu.Lock()
		looks := manyCharged
		for b, next := range s.draining { // the order of the blocks is random
			if looks--; looks < 0 {
				break
			}
			if s.timelines.Quiet(b) {
				delete(s.draining, b)
				next()
				pause = drainPause
			}
		}
		left := len(s.draining)
		s.unlock()
		if left == 0 {
			return
		}
	}
}

// soon returns a signal that fires after drainRest. Callers use it to poll counter words.
func soon() *signal {
	ch := make(chan struct{})
	time.AfterFunc(drainRest, func() { close(ch) })
	return &signal{ch: ch}
}

// maxFences is the greatest number of fences with which a free block may be used again at once: the service sends all these fences to the
// block's next user.
const maxFences = 256
