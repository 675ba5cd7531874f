package bridge

import "sync"

// tasks are what a client does unasked: they are run one after another, away from the goroutine that receives, which
// must never wait to send. The service may be waiting for it.
type tasks struct {
	mu   sync.Mutex
	todo []func()
	wake chan struct{} // has room for one
}

func (e *tasks) add(f func()) {
	e.mu.Lock()
	e.todo = append(e.todo, f)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default: // it is awake
	}
}

// run runs tasks until done is closed, and then those that are left.
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
