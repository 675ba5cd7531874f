package service

import "time"

// This file polls the fences of blocks that are to be freed while GPU work on them is under way: a stream that writes a word notifies
// nobody. It polls while there is such a block. The pauses between two polls grow from drainPause to drainRest.
const (
	drainPause = 100 * time.Microsecond
	drainRest  = 10 * time.Millisecond
)

// drain calls next, with Service.mu held, when no GPU work uses b any more. Service.mu is held.
func (s *Service) drain(b *block, next func()) {
	if s.draining == nil {
		s.draining = make(map[*block]func())
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
		for b, next := range s.draining { // begins with a random one
			if looks--; looks < 0 {
				break
			}
			if b.quiet() {
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

// quiet says whether all fences of b are reached. Service.mu is held.
func (b *block) quiet() bool {
	b.fences = b.fences.pending()
	return len(b.fences) == 0
}

// soon returns a signal that fires after drainRest. Callers use it to poll counter words.
func soon() *signal {
	ch := make(chan struct{})
	time.AfterFunc(drainRest, func() { close(ch) })
	return &signal{ch: ch}
}

// maxFences is how many fences a block may have and still be used again at once: its next user gets all of them.
const maxFences = 256
