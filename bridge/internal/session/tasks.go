package session

import "sync"

// tasks is the work that a session does later: after notices and replies of the service, for requests whose callers have left, and for
// streams. One goroutine runs the tasks, one after another. No goroutine that receives runs them: it must never wait to send, because the
// service may be waiting until the client receives.
type tasks struct {
	mu   sync.Mutex
	todo []func()
	wake chan struct{} // buffered for one value
}

func (ts *tasks) add(f func()) {
	ts.mu.Lock()
	ts.todo = append(ts.todo, f)
	ts.mu.Unlock()
	select {
	case ts.wake <- struct{}{}:
	default: // run will wake up anyway, because wake has a value
	}
}

// run runs tasks until done is closed, and then runs the remaining tasks.
func (ts *tasks) run(done <-chan struct{}) {
	for last := false; !last; {
		select {
		case <-ts.wake:
		case <-done:
			last = true
		}
		ts.mu.Lock()
		todo := ts.todo
		ts.todo = nil
		ts.mu.Unlock()
		for _, f := range todo {
			f()
		}
	}
}
