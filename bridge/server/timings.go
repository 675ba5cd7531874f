package server

import (
	"sync"
	"time"
)

// timings are the times since which the requests of a session wait for their answers.
type timings struct {
	report func(operation, result string, took time.Duration) // Config.Answered; nil: nobody wants to know

	mu    sync.Mutex
	asked map[uint32]asked // by number
}

// asked is a request that has no answer yet.
type asked struct {
	operation string
	at        time.Time
}

// begin records that the server carries out request q, so that the server can call [Config.Answered] later. When the handler of the
// request has returned, the caller calls the function `returned`.
func (t *timings) begin(q uint32, operation string) (returned func()) {
	if t.report == nil {
		return func() {}
	}
	begun := asked{operation, time.Now()}
	if q == 0 {
		return func() { t.report(operation, "unanswered", time.Since(begun.at)) }
	}
	t.mu.Lock()
	if t.asked == nil {
		t.asked = make(map[uint32]asked)
	}
	t.asked[q] = begun
	t.mu.Unlock()
	return func() {}
}

// end removes the record of request q. The caller calls end before it sends the answer, because the client may use the number q again
// as soon as the client has the answer. When the answer is sent, or could not be sent, the caller calls the function `sent`, which reports the
// result and the duration to [Config.Answered].
func (t *timings) end(q uint32) (sent func(result string)) {
	if t.report == nil {
		return func(string) {}
	}
	t.mu.Lock()
	begun, ok := t.asked[q]
	delete(t.asked, q)
	t.mu.Unlock()
	return func(result string) {
		if ok {
			t.report(begun.operation, result, time.Since(begun.at))
		}
	}
}
