package service

import "time"

// Blocks that are to be freed but on which work may still be under way wait here: streams tell nobody when they write a
// word, so the words are looked at again and again, while there is such a block and no longer.
const (
	drainPause = 100 * time.Microsecond
	drainRest  = 10 * time.Millisecond
)

// drain lets next happen, with Service.mu held, once nothing works on b any more. Service.mu is held.
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
		for b, next := range s.draining { // from another one on each time
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

// quiet says whether no fence of b has to be waited for. Service.mu is held.
func (b *block) quiet() bool {
	b.fences = b.fences.pending()
	return len(b.fences) == 0
}

// soon is over after a while: for those that poll words.
func soon() *signal {
	ch := make(chan struct{})
	time.AfterFunc(drainRest, func() { close(ch) })
	return &signal{ch: ch}
}

// maxFences is how many fences a block may have and still be used again at once: they all go to its next user.
const maxFences = 256
