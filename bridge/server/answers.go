package server

import (
	"sync"
	"time"
)

// unanswered are the requests of a session that have no answer yet.
type unanswered struct {
	report func(operation, result string, took time.Duration) // Config.Answered; nil: nobody wants to know

	mu    sync.Mutex
	asked map[uint32]asked // by number
}

// asked is a request that has no answer yet.
type asked struct {
	operation string
	at        time.Time
}

// begins records that the server carries out request q, so that the server can call [Config.Answered] later. When the handler of the
// request has returned, the caller calls the function `returned`.
func (a *unanswered) begins(q uint32, operation string) (returned func()) {
	if a.report == nil {
		return func() {}
	}
	begun := asked{operation, time.Now()}
	if q == 0 {
		return func() { a.report(operation, "unanswered", time.Since(begun.at)) }
	}
	a.mu.Lock()
	if a.asked == nil {
		a.asked = make(map[uint32]asked)
	}
	a.asked[q] = begun
	a.mu.Unlock()
	return func() {}
}

// answer removes the record of request q. The caller calls answer before it sends the answer, because the client may use the number q again
// as soon as the client has the answer. When the answer is sent, the caller calls the function `sent` with the result.
func (a *unanswered) answer(q uint32) (sent func(result string)) {
	if a.report == nil {
		return func(string) {}
	}
	a.mu.Lock()
	begun, ok := a.asked[q]
	delete(a.asked, q)
	a.mu.Unlock()
	return func(result string) {
		if ok {
			a.report(begun.operation, result, time.Since(begun.at))
		}
	}
}
