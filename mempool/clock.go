package mempool

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// Clock is a session's own timeline, in the process of that session: it makes fences and lets queues reach them.
type Clock struct {
	id   uint64
	page *Page

	life   sync.RWMutex // held to read while the page is used, to write when that ends
	closed bool

	mu     sync.Mutex
	words  uint64 // how many are taken
	free   []uint64
	next   [TimelineWords]uint64 // the last value that was given out for a word
	begun  [TimelineWords]uint64 // the last one that a queue was told to reach
	wordOf map[any]uint64        // the word of each queue
	queue  map[uint64]Queue      // what was told last to reach a word
}

// NewClock makes a clock of a session's timeline, which is mapped to write. It owns the page from then on.
func NewClock(id uint64, page *Page) *Clock {
	return &Clock{id: id, page: page, wordOf: make(map[any]uint64), queue: make(map[uint64]Queue)}
}

// Timeline is the timeline's id.
func (c *Clock) Timeline() uint64 { return c.id }

// Page is the timeline. It must not be used after the session has ended.
func (c *Clock) Page() *Page { return c.page }

// use begins a use of the page, unless the session has ended.
func (c *Clock) use() error {
	c.life.RLock()
	if c.closed {
		c.life.RUnlock()
		return situation.Of(ErrClosed, "the session of timeline %d has ended", c.id)
	}
	return nil
}

// Close ends the use of the timeline. The page stays mapped.
func (c *Clock) Close() {
	c.life.Lock()
	defer c.life.Unlock()
	c.closed = true
}

// Word takes a word for the caller's own use: for work that is done neither by this package nor in a [Queue].
//
// Errors: [ErrLimit] if none is left.
func (c *Clock) Word() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.take()
}

// take is Word with c.mu held.
func (c *Clock) take() (uint64, error) {
	if n := len(c.free); n > 0 {
		word := c.free[n-1]
		c.free = c.free[:n-1]
		return word, nil
	}
	if c.words == TimelineWords {
		return 0, situation.Of(ErrLimit, "all %d words of the session's timeline are in use", TimelineWords)
	}
	c.words++
	return c.words - 1, nil
}

// Next makes a fence of a word that the caller took: the next in order.
func (c *Clock) Next(word uint64) Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.after(word)
}

func (c *Clock) after(word uint64) Fence {
	c.next[word]++
	return Fence{Timeline: c.id, Word: word, Value: c.next[word]}
}

// Reach says that a fence of a word that the caller took is reached, and with it those before.
//
// Errors: [ErrInvalid] for a fence of another timeline, [ErrClosed].
func (c *Clock) Reach(t Fence) error {
	if t.Timeline != c.id {
		return situation.Of(ErrInvalid, "a fence of timeline %d cannot be reached by timeline %d", t.Timeline, c.id)
	}
	if err := t.Validate(); err != nil {
		return err
	}
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.page.raise(t.Word, t.Value)
	return nil
}

// Signal makes a fence that is reached when what is in the queue now is done: nil if it is done already. Where a queue
// cannot write a word, or fails to, it waits for the work instead: this is the one place where a transfer does. A nil clock
// cannot make fences.
func (c *Clock) Signal(q Queue) (*Fence, error) {
	key := q.orderKey()
	if key == nil {
		return nil, nil
	}
	if c != nil {
		t, err := c.signal(q, key)
		if err == nil || errors.Is(err, ErrClosed) {
			return t, err
		}
	}
	return nil, q.synchronize()
}

func (c *Clock) signal(q Queue, key any) (*Fence, error) {
	if err := c.use(); err != nil {
		return nil, err
	}
	defer c.life.RUnlock()
	c.mu.Lock() // until the queue has it: the values of a word must grow in the order of the queue
	defer c.mu.Unlock()
	word, ok := c.wordOf[key]
	if !ok {
		var err error
		if word, err = c.take(); err != nil {
			return nil, err
		}
		c.wordOf[key] = word
	}
	t := c.after(word)
	if err := q.signal(c.page, t); err != nil {
		c.next[word]-- // nobody was told of it
		return nil, err
	}
	c.begun[word], c.queue[word] = t.Value, q
	return &t, nil
}

// owns says whether waiting for t is nothing to the queue, because t comes from the queue itself.
func (c *Clock) owns(t Fence, q Queue) bool {
	if c == nil || t.Timeline != c.id || q.orderKey() == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	word, ok := c.wordOf[q.orderKey()]
	return ok && word == t.Word
}

// Forget gives back the word of a queue that is not used any more, once its work is done.
func (c *Clock) Forget(ctx context.Context, q Queue) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	word, ok := c.wordOf[q.orderKey()]
	begun := c.begun[word]
	c.mu.Unlock()
	if !ok {
		return nil
	}
	if begun > 0 {
		if err := c.page.Await(ctx, Fence{c.id, word, begun}, 0); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.wordOf, q.orderKey())
	delete(c.queue, word)
	c.free = append(c.free, word)
	return nil
}

// Quiesce returns when the queues have reached every fence that was made of them, or never will: on a GPU that is ruined
// no work goes on. The waits of others for such fences end as if the process had died.
//
// Errors: [ErrTimeout].
func (c *Clock) Quiesce(limit time.Duration) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	begun, queues := c.begun, maps.Clone(c.queue)
	c.mu.Unlock()
	end := time.Now().Add(limit)
	for word, value := range begun {
		if value == 0 {
			continue
		}
		q := queues[uint64(word)]
		err := c.reached(Fence{c.id, uint64(word), value}, q, end)
		if errors.Is(err, ErrProducerDied) && q != nil {
			err = insist(q.synchronize) // a service that was shut down let the word go, and the work goes on
		}
		if err != nil && !errors.Is(err, ErrProducerDied) && !errors.Is(err, cuda.ErrClosed) {
			return err
		}
	}
	return nil
}

// reached waits until a queue has reached a fence, and looks again and again whether it still can.
func (c *Clock) reached(t Fence, q Queue, end time.Time) error {
	for look := time.Millisecond; ; look = min(2*look, 100*time.Millisecond) {
		left := max(time.Until(end), 1)
		err := c.page.Await(context.Background(), t, min(look, left))
		if !errors.Is(err, ErrTimeout) || left == 1 {
			return err
		}
		if s, ok := q.(*streamQueue); ok && s.ruined() {
			c.page.LetGo()
			return cuda.ErrClosed
		}
	}
}

// Past says whether a fence of this clock is reached.
func (c *Clock) Past(t Fence) bool {
	if c.use() != nil {
		return true
	}
	defer c.life.RUnlock()
	return c.page.Passed(t.Word, t.Value)
}

// Await waits for a fence of this clock.
//
// Errors: the context's, [ErrClosed].
func (c *Clock) Await(ctx context.Context, t Fence) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	return c.page.Await(ctx, t, 0)
}
