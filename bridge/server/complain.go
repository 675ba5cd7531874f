package server

import (
	"log/slog"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/ration"
)

// complaints logs what clients can cause as often as they like, and limits how often each user causes a line.
type complaints struct {
	log *slog.Logger

	mu      sync.Mutex
	rations ration.Ration[complaint]
	leftOut map[complaint]int
}

type complaint struct {
	uid  uint32
	text string
}

// warn logs a warning that a user has caused, and how many of these warnings were left out before.
func (c *complaints) warn(uid uint32, text string, args ...any) {
	key := complaint{uid, text}
	c.mu.Lock()
	if c.leftOut == nil {
		c.leftOut = make(map[complaint]int)
	}
	if !c.rations.Take(key, time.Now()) {
		c.leftOut[key]++
		c.mu.Unlock()
		return
	}
	n := c.leftOut[key]
	delete(c.leftOut, key)
	c.mu.Unlock()
	if n > 0 {
		args = append(args, "left_out", n)
	}
	c.log.Warn(text, args...)
}
