package mempool

// signal tells goroutines that something changed. Its methods are called with the lock held that guards what changed.
type signal struct {
	ch    chan struct{}
	count uint64 // of broadcasts
}

// next is closed at the next broadcast.
func (s *signal) next() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// after is closed once there were more than count broadcasts: for who let go of the lock since it read the count.
func (s *signal) after(count uint64) <-chan struct{} {
	if s.count > count {
		return past
	}
	return s.next()
}

func (s *signal) broadcast() {
	s.count++
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// past is closed.
var past = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()
