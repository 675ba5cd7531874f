package mempool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// Clock writes a session's own timeline, in the process of that session. A Clock makes fences, and tells queues to mark these fences as
// reached.
type Clock struct {
	id   uint64
	page *Page

	life   sync.RWMutex // read-locked while the page is used, locked to close the clock
	closed bool

	mu     sync.Mutex
	words  uint64 // number of different words that were taken so far
	free   []uint64
	next   [TimelineWords]uint64 // by word: the value of the newest fence
	begun  [TimelineWords]uint64 // by word: the last value that a queue was told to write
	wordOf map[any]uint64        // by the key of a queue: the word of the queue's fences
	queue  map[uint64]Queue      // by word: the queue that was last told to write the word

	reserved [TimelineWords]bool // by word: reserved with Word, and not freed yet
	holders  map[uint64][]holder // by word: what was published with fences that were not reached then
	failed   map[uint64]*failure // by word that was freed after a fence had failed
}

// failure has the holders of the fences of a failed word. A word that is renewed and fails again has another failure.
type failure struct{ holders []holder }

// holder is something in which others find a fence, such as a buffer.
type holder struct {
	value uint64
	gone  func(context.Context) (bool, error)
}

// NewClock makes a clock of a session's timeline. The page must be mapped for writing. The new clock owns the page.
func NewClock(id uint64, page *Page) *Clock {
	return &Clock{id: id, page: page, wordOf: make(map[any]uint64), queue: make(map[uint64]Queue),
		holders: make(map[uint64][]holder), failed: make(map[uint64]*failure)}
}

// Timeline returns the timeline's id.
func (c *Clock) Timeline() uint64 { return c.id }

// Page returns the page of the clock's timeline. The caller must not use the page after the session has ended.
func (c *Clock) Page() *Page { return c.page }

// use begins a use of the page. The caller ends the use with c.life.RUnlock. If the session has ended, use returns an error.
func (c *Clock) use() error {
	c.life.RLock()
	if c.closed {
		c.life.RUnlock()
		return typed.Errorf(ErrClosed, "the session of timeline %d has ended", c.id)
	}
	return nil
}

// Close ends the use of the timeline. The page stays mapped.
func (c *Clock) Close() {
	c.life.Lock()
	defer c.life.Unlock()
	c.closed = true
}

// Word reserves a word of the timeline for the caller. The caller can use this word for work that is neither in a [Queue] nor done by this
// package, and calls [Clock.Free] when it needs the word no more. If no word is free, Word asks the service whether somebody can still read
// fences that have failed.
//
// Errors: [ErrLimit] if all words are taken; those of the requests.
func (c *Clock) Word(ctx context.Context) (uint64, error) {
	word, err := c.reserve()
	if err == nil {
		return word, nil
	}
	if err := c.renew(ctx); err != nil {
		return 0, err
	}
	return c.reserve()
}

func (c *Clock) reserve() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	word, err := c.take()
	if err == nil {
		c.reserved[word] = true
	}
	return word, err
}

// take takes a free word. The caller holds c.mu.
func (c *Clock) take() (uint64, error) {
	if n := len(c.free); n > 0 {
		word := c.free[n-1]
		c.free = c.free[:n-1]
		return word, nil
	}
	if c.words == TimelineWords {
		return 0, typed.Errorf(ErrLimit, "all %d words of the session's timeline are taken: %d by content that has failed and is still leased, published or in a "+
			"channel; release and unpublish such content, make many fences of one word, free words, or forget queues that are not needed",
			TimelineWords, len(c.failed))
	}
	c.words++
	return c.words - 1, nil
}

// Free ends the reservation of a word. The caller must not use the word or its fences afterwards. If a fence of the word has failed, the
// clock does not give the word to another caller before the content that was published with the fence is gone.
//
// Errors: [ErrInvalid] if the word is not reserved, or a fence of it is neither reached nor failed; [ErrClosed].
func (c *Clock) Free(word uint64) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case word >= TimelineWords || !c.reserved[word]:
		return typed.Errorf(ErrInvalid, "word %d is not reserved: free a word that Word has returned, and free it once", word)
	case !c.page.Passed(word, c.next[word]):
		return typed.Errorf(ErrInvalid, "fence %d of word %d is neither reached nor failed: call Reach or Fail first", c.next[word], word)
	}
	c.reserved[word] = false
	holders := c.holders[word]
	delete(c.holders, word)
	if c.page.Reason(word) != "" {
		c.failed[word] = &failure{holders}
		return nil
	}
	c.free = append(c.free, word)
	return nil
}

// Published notes that others may find fence t in a holder, such as a buffer. The function `gone` says whether the holder is gone. Clients
// call Published; programs need not.
func (c *Clock) Published(t Fence, gone func(context.Context) (bool, error)) {
	if t.Timeline != c.id || t.Validate() != nil || c.use() != nil {
		return
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	reached := func(value uint64) bool { return c.page.Passed(t.Word, value) && !c.page.Failed(t.Word, value) }
	if c.reserved[t.Word] && !reached(t.Value) {
		left := slices.DeleteFunc(c.holders[t.Word], func(h holder) bool { return reached(h.value) })
		c.holders[t.Word] = append(left, holder{t.Value, gone})
	}
}

// renew frees the words with failed fences whose holders are gone.
func (c *Clock) renew(ctx context.Context) error {
	c.mu.Lock()
	failed := maps.Clone(c.failed)
	c.mu.Unlock()
	for word, f := range failed {
		gone, err := true, error(nil)
		for i := 0; gone && i < len(f.holders); i++ {
			if gone, err = f.holders[i].gone(ctx); err != nil {
				return err
			}
		}
		if gone {
			c.renewWord(word, f)
		}
	}
	return nil
}

// renewWord makes a word free whose failure is f, unless another goroutine has renewed the word since.
func (c *Clock) renewWord(word uint64, f *failure) {
	if c.use() != nil {
		return
	}
	defer c.life.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed[word] != f {
		return
	}
	for _, h := range f.holders {
		c.next[word] = max(c.next[word], h.value)
	}
	c.page.renew(word, c.next[word])
	delete(c.failed, word)
	c.free = append(c.free, word)
}

// Next makes a fence of a word. The fence's value is the next value of the word. The caller must have reserved the word with [Clock.Word].
func (c *Clock) Next(word uint64) Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.after(word)
}

func (c *Clock) after(word uint64) Fence {
	c.next[word]++
	return Fence{Timeline: c.id, Word: word, Value: c.next[word]}
}

// Reach marks fence t, and all earlier fences of the same word, as reached. The caller must have reserved the word with [Clock.Word].
//
// Errors: [ErrInvalid] if the fence belongs to another timeline, is out of range, or has failed because of a call of [Clock.Fail];
// [ErrClosed].
func (c *Clock) Reach(t Fence) error {
	if err := c.useFor(t); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.page.raise(t.Word, t.Value) // raise changes nothing if the fence has failed
	if c.page.Failed(t.Word, t.Value) && c.page.Reason(t.Word) != "" {
		return typed.Errorf(ErrInvalid, "the content of fence %d of word %d has failed and cannot be completed any more", t.Value, t.Word)
	}
	return nil
}

// Fail marks fence t as failed: the content that should be complete at this fence will never be complete. The caller must have reserved the
// fence's word with [Clock.Word]. All waits for the fence end. A wait on the CPU returns [ErrContentFailed] with the reason. A wait on a
// GPU returns no error, but a later call of [Order.Check] does. The parameter `reason` is a text for this error; Fail keeps at most
// [MaxReasonBytes] bytes of the text. If Fail is called again for the same word, the first reason stays.
//
// After Fail, all fences of the word that were not reached have failed. All later fences of the word have failed too, so the caller must
// use another word for other content, and [Clock.Free] this one.
//
// Errors: [ErrInvalid] if the fence belongs to another timeline, is out of range, or is reached; [ErrClosed].
func (c *Clock) Fail(t Fence, reason string) error {
	if err := c.useFor(t); err != nil {
		return err
	}
	defer c.life.RUnlock()
	c.mu.Lock() // only one goroutine at a time writes a reason
	defer c.mu.Unlock()
	if !c.page.fail(t.Word, t.Value, reason) {
		return typed.Errorf(ErrInvalid, "fence %d of word %d is reached: its content is complete and cannot fail any more", t.Value, t.Word)
	}
	return nil
}

// useFor begins a use of the page for work on fence t. The caller ends the use with c.life.RUnlock. If the session has ended or t is not a
// valid fence of this clock, useFor returns an error.
func (c *Clock) useFor(t Fence) error {
	if t.Timeline != c.id {
		return typed.Errorf(ErrInvalid, "a fence of timeline %d cannot be reached by timeline %d", t.Timeline, c.id)
	}
	if err := t.Validate(); err != nil {
		return err
	}
	return c.use()
}

// Signal makes a fence that is reached when all work that is now in queue q is done. If the queue cannot write words of a timeline, if no
// word is left, or if c is nil, Signal waits until the work is done. Signal returns nil if no work is left to wait for.
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
	c.mu.Lock() // held until the write is in the queue, because the values of a word must grow in the order of the queue
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
		c.next[word]-- // no caller has seen this fence
		return nil, err
	}
	c.begun[word], c.queue[word] = t.Value, q
	return &t, nil
}

// owns reports whether t is a fence of the queue's own work. A queue need not wait for its own work.
func (c *Clock) owns(t Fence, q Queue) bool {
	if c == nil || t.Timeline != c.id || q.orderKey() == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	word, ok := c.wordOf[q.orderKey()]
	return ok && word == t.Word
}

// Forget waits until the work of a queue is done, and then frees the word of the queue. The caller must not use the queue afterwards.
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

// Quiesce waits until all fences that Signal has made are reached. It does not wait for a queue whose GPU is broken. If a GPU is broken,
// all waits of other sessions for fences of this clock end as if this process had died.
//
// Errors: the context's error, with [ErrBusy] at the context's deadline; [ErrClosed].
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
			err = insist(q.synchronize) // the service has shut down and ended all waits for words, but q still works
		}
		if err != nil && !errors.Is(err, ErrProducerDied) && !errors.Is(err, cuda.ErrClosed) {
			return err
		}
	}
	return nil
}

// reached waits until fence t of queue q is reached. During the wait, it checks repeatedly whether q is ruined.
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

// Past reports whether no wait for a fence of this clock is needed: the fence is reached or has failed, or the session has ended.
func (c *Clock) Past(t Fence) bool {
	if c.use() != nil {
		return true
	}
	defer c.life.RUnlock()
	return c.page.Passed(t.Word, t.Value)
}

// Await waits until a fence of this clock is reached.
//
// Errors: the context's error, [ErrContentFailed], [ErrProducerDied], [ErrClosed].
func (c *Clock) Await(ctx context.Context, t Fence) error {
	if err := c.use(); err != nil {
		return err
	}
	defer c.life.RUnlock()
	return c.page.Await(ctx, t)
}
