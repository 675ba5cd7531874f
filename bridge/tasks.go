package bridge

import "sync"

// tasks is the work that a client does after notices and replies of the service. The tasks run one after another, and not in the receiving
// goroutine: the receiving goroutine must never wait to send, because the service may be waiting until the client receives.
type tasks struct {
	mu   sync.Mutex
	todo []func()
	wake chan struct{} // buffered for one value
}

func (e *tasks) add(f func()) {
	e.mu.Lock()
	e.todo = append(e.todo, f)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default: // run will wake up anyway, because wake has a value
	}
}

// run runs tasks until done is closed, and then runs the remaining tasks.
func (e *tasks) run(done <-chan struct{}) {
	for last := false; !last; {
		select {
		case <-e.wake:
		case <-done:
			last = true
		}
		e.mu.Lock()
		todo := e.todo
		e.todo = nil
		e.mu.Unlock()
		for _, f := range todo {
			f()
		}
	}
}
