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

// Clock is a session's own timeline, in the process of that session. It makes fences and lets queues reach them.
type Clock struct {
	id   uint64
	page *Page

	life   sync.RWMutex // read-locked while the page is used, locked to end its use
	closed bool

	mu     sync.Mutex
	words  uint64 // how many words were ever taken
	free   []uint64
	next   [TimelineWords]uint64 // by word: the last value that a fence got
	begun  [TimelineWords]uint64 // by word: the last value that a queue was told to reach
	wordOf map[any]uint64        // by the key of a queue: the word of its fences
	queue  map[uint64]Queue      // by word: the queue that was last told to reach it
}

// NewClock makes a clock of a session's timeline. The page must be mapped for writing. The clock owns the page from then on.
func NewClock(id uint64, page *Page) *Clock {
	return &Clock{id: id, page: page, wordOf: make(map[any]uint64), queue: make(map[uint64]Queue)}
}

// Timeline returns the timeline's id.
func (c *Clock) Timeline() uint64 { return c.id }

// Page returns the timeline. It must not be used after the session has ended.
func (c *Clock) Page() *Page { return c.page }

// use begins a use of the page. The caller ends it with c.life.RUnlock. It fails if the session has ended.
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

// Word takes a word for the caller, for work that neither this package nor a [Queue] does.
//
// Errors: [ErrLimit] if all words are taken.
func (c *Clock) Word() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.take()
}

// take does the same as Word. The caller holds c.mu.
func (c *Clock) take() (uint64, error) {
	if n := len(c.free); n > 0 {
		word := c.free[n-1]
		c.free = c.free[:n-1]
		return word, nil
	}
	if c.words == TimelineWords {
		return 0, situation.Of(ErrLimit, "all %d words of the session's timeline are taken, and one whose content has failed is never used again: "+
			"make many fences of one word, forget queues that are not needed, or connect again", TimelineWords)
	}
	c.words++
	return c.words - 1, nil
}

// Next returns the next fence of a word that the caller took.
func (c *Clock) Next(word uint64) Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.after(word)
}

func (c *Clock) after(word uint64) Fence {
	c.next[word]++
	return Fence{Timeline: c.id, Word: word, Value: c.next[word]}
}

// Reach marks a fence of a word that the caller took as reached, and all earlier ones of that word.
//
// Errors: [ErrInvalid] for a fence of another timeline, out of range, or failed by [Clock.Fail]; [ErrClosed].
func (c *Clock) Reach(t Fence) error {
	if err := c.useFor(t); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.page.raise(t.Word, t.Value) // not if it has failed
	if c.page.Failed(t.Word, t.Value) && c.page.Reason(t.Word) != "" {
		return situation.Of(ErrInvalid, "the content of fence %d of word %d has failed and cannot be completed any more", t.Value, t.Word)
	}
	return nil
}

// Fail says that the content that is complete at a fence will never be complete. The fence is of a word that the caller took. Readers that wait
// for the fence go on: those on the CPU get [ErrContentFailed] with the reason, and so does [Order.Check] after the wait of a GPU. reason is the
// text of an error; at most [MaxReasonBytes] of it are kept. The first call counts.
//
// Every fence of the word that is not reached has failed then, and so has every later one. Use another word for other content. A word that has
// failed is not used again while the session lasts.
//
// Errors: [ErrInvalid] for a fence of another timeline, out of range, or reached; [ErrClosed].
func (c *Clock) Fail(t Fence, reason string) error {
	if err := c.useFor(t); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock() // one reason at a time
	defer c.mu.Unlock()
	if !c.page.fail(t.Word, t.Value, reason) {
		return situation.Of(ErrInvalid, "fence %d of word %d is reached: its content is complete and cannot fail any more", t.Value, t.Word)
	}
	return nil
}

// useFor begins a use of the page, as use does, for work on a fence of this clock.
func (c *Clock) useFor(t Fence) error {
	if t.Timeline != c.id {
		return situation.Of(ErrInvalid, "a fence of timeline %d cannot be reached by timeline %d", t.Timeline, c.id)
	}
	if err := t.Validate(); err != nil {
		return err
	}
	return c.use()
}

// Signal makes a fence that is reached when all work that is now in the queue is done. It returns nil if the work is done already. If the
// queue cannot write a word, or fails to, Signal waits for the work instead: this is the only place where a transfer waits. A nil clock
// always waits.
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
	c.mu.Lock() // held until the queue has the write, because the values of a word must grow in the order of the queue
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
		c.next[word]-- // nobody has seen this fence
		return nil, err
	}
	c.begun[word], c.queue[word] = t.Value, q
	return &t, nil
}

// owns reports whether t is a fence of the queue's own work. The queue then need not wait for it.
func (c *Clock) owns(t Fence, q Queue) bool {
	if c == nil || t.Timeline != c.id || q.orderKey() == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	word, ok := c.wordOf[q.orderKey()]
	return ok && word == t.Word
}

// Forget waits until the work of a queue is done and frees the queue's word. The queue must not be used afterwards.
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
		if err := c.page.Await(ctx, Fence{c.id, word, begun}); err != nil {
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

// Quiesce returns when the queues have reached every fence that was made of them, or cannot reach it any more, because their GPU is
// broken.
// Waits of other sessions for such fences end as if the process had died.
//
// Errors: the context's, at its deadline with [ErrBusy].
func (c *Clock) Quiesce(ctx context.Context) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	begun, queues := c.begun, maps.Clone(c.queue)
	c.mu.Unlock()
	for word, value := range begun {
		if value == 0 {
			continue
		}
		q := queues[uint64(word)]
		err := c.reached(ctx, Fence{c.id, uint64(word), value}, q)
		if errors.Is(err, ErrProducerDied) && q != nil {
			err = insist(q.synchronize) // the service ended all waits for the words when it was shut down, but the work goes on
		}
		if err != nil && !errors.Is(err, ErrProducerDied) && !errors.Is(err, cuda.ErrClosed) {
			return err
		}
	}
	return nil
}

// reached waits until a queue has reached a fence. Meanwhile it checks repeatedly whether the queue's GPU is broken.
func (c *Clock) reached(ctx context.Context, t Fence, q Queue) error {
	for look := time.Millisecond; ; look = min(2*look, 100*time.Millisecond) {
		short, cancel := context.WithTimeout(ctx, look)
		err := c.page.Await(short, t)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if s, ok := q.(*streamQueue); ok && s.ruined() {
			c.page.LetGo()
			return cuda.ErrClosed
		}
	}
}

// Past reports whether a fence of this clock is reached.
func (c *Clock) Past(t Fence) bool {
	if c.use() != nil {
		return true
	}
	defer c.life.RUnlock()
	return c.page.Passed(t.Word, t.Value)
}

// Await waits until a fence of this clock is reached.
//
// Errors: the context's, [ErrProducerDied], [ErrClosed].
func (c *Clock) Await(ctx context.Context, t Fence) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	return c.page.Await(ctx, t)
}
