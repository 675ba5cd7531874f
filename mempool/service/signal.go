package service

// signal tells goroutines that something changed. Its methods are called with the lock held that guards what changed.
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

// countedSignal is a signal for who lets go of the lock before it waits.
type countedSignal struct {
	signal
	count uint64 // of broadcasts
}

func (s *countedSignal) broadcast() {
	s.count++
	s.signal.broadcast()
}

// after is closed once there were more than count broadcasts.
func (s *countedSignal) after(count uint64) <-chan struct{} {
	if s.count > count {
		return past
	}
	return s.next()
}

// past is closed.
var past = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()
