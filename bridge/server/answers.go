package server

import "time"

// asked is a request that has no answer yet.
type asked struct {
	operation string
	at        time.Time
}

// begins records that the server carries out request q, so that the server can call [Config.Answered] later. When the handler of the
// request has returned, the caller calls the function `returned`.
func (c *connection) begins(q uint32, operation string) (returned func()) {
	begun := asked{operation, time.Now()}
	if q == 0 {
		return func() { c.server.config.Answered(operation, "unanswered", time.Since(begun.at)) }
	}
	c.mu.Lock()
	if c.asked == nil {
		c.asked = make(map[uint32]asked)
	}
	c.asked[q] = begun
	c.mu.Unlock()
	return func() {}
}

// answer removes the record of request q. The caller calls answer before it sends the answer, because the client may use the number q again
// as soon as the client has the answer. When the answer is sent, the caller calls the function `sent` with the result.
func (c *connection) answer(q uint32) (sent func(result string)) {
	if c.server.config.Answered == nil {
		return func(string) {}
	}
	c.mu.Lock()
	begun, ok := c.asked[q]
	delete(c.asked, q)
	c.mu.Unlock()
	return func(result string) {
		if ok {
			c.server.config.Answered(begun.operation, result, time.Since(begun.at))
		}
	}
}
