package bridge

import (
	"time"
)

// asked is a request that is not answered yet.
type asked struct {
	operation string
	at        time.Time
}

// begins notes that request q is carried out, for [ServerConfig.Answered]. The caller calls what it returns when the handler has returned.
func (c *serverConn) begins(q uint32, operation string) (returned func()) {
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

// answer begins to answer request q: the client may use the number again as soon as it has the answer. The caller says with what
// it was answered once that is sent.
func (c *serverConn) answer(q uint32) (sent func(result string)) {
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
