package mempool

// signal tells goroutines that something changed. Both methods are called with the lock held that guards what changed.
type signal struct{ ch chan struct{} }

// next is closed at the next broadcast.
func (s *signal) next() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) broadcast() {
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
