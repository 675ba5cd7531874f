package service

// signal tells goroutines that something changed. A caller of its methods holds the lock that guards the changed state. Few goroutines wait
// for one signal, so broadcast wakes them at once, and not when the lock is released, as roomQueue does.
type signal struct{ ch chan struct{} }

// next returns a channel that the next broadcast closes.
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

// countedSignal is a signal that also counts its broadcasts. If a caller releases the lock after it has read the state and before it waits,
// another goroutine may call broadcast in that time. So this caller reads the count together with the state, and passes it to the method
// after.
type countedSignal struct {
	signal
	count uint64 // number of broadcasts
}

func (s *countedSignal) broadcast() {
	s.count++
	s.signal.broadcast()
}

// after returns a channel that is closed as soon as there were more than count broadcasts.
func (s *countedSignal) after(count uint64) <-chan struct{} {
	if s.count > count {
		return past
	}
	return s.next()
}

// past is a closed channel.
var past = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()
