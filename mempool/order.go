package mempool

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Order keeps the work on a lease's memory in order. It knows what must happen before this process uses the memory, and which work of this
// process uses the memory. For the zero value of an Order, nothing must happen before this process uses the memory.
type Order struct {
	// Pages returns the page of a timeline.
	Pages func(ctx context.Context, timeline uint64) (*Page, error)
	// Clock returns the clock with which this process makes fences for its own work.
	Clock func(ctx context.Context) (*Clock, error)

	mu sync.Mutex
	awaited
	told   map[any]struct{} // keys of the queues that wait for the fences
	named  bool             // the caller has made one of its queues wait for them
	ready  readyEvent
	opened []*Event         // events that Close must close
	used   bool             // work of this package on the memory may be running
	uses   uint64           // how often such work began or ended
	given  map[any]struct{} // keys of the queues that wait for this work
}

// awaited has what must happen before this process uses the memory.
type awaited struct {
	fences []Fence // all must be reached
	strict bool    // a fence that will never be reached is an error; otherwise it counts as reached
	older  []Fence // fences of those who used the memory before this process wrote it: they are never an error
	ends   int     // how often Ended was called
}

// Begin sets the fences that must be reached before this process uses the memory. If `strict` is true, a fence that will never be reached
// is an error. Otherwise it counts as reached. For a lease for reading, `strict` must be true, because a reader needs complete content.
func (o *Order) Begin(wait []Fence, strict bool) { o.fences, o.strict = wait, strict }

// Before makes later work in queue q wait for everything that must happen before this process uses the memory.
//
// Errors: the context's error, if the context ends while the CPU waits; joined with [ErrBusy], if the context's deadline has passed.
// [ErrContentFailed] or [ErrProducerDied], if the content will never be complete.
func (o *Order) Before(ctx context.Context, q Queue) error {
	key := q.orderKey()
	o.mu.Lock()
	before := o.awaited
	_, told := o.told[key]
	o.mu.Unlock()
	if len(before.fences) == 0 || (told && key != nil) {
		return nil
	}
	var over []Fence
	for _, t := range before.fences { // without the lock, because the CPU may wait for long
		done, err := o.one(ctx, before, q, t)
		if err != nil {
			return err
		}
		if done {
			over = append(over, t)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(over) > 0 {
		o.fences = slices.DeleteFunc(slices.Clone(o.fences), func(t Fence) bool { return slices.Contains(over, t) })
	}
	if key != nil && o.ends == before.ends { // otherwise Ended has added a fence meanwhile
		if o.told == nil {
			o.told = make(map[any]struct{})
		}
		o.told[key] = struct{}{}
	}
	return nil
}

// one makes queue q wait for fence t of a. The result `over` is true if no queue needs to wait for t any more.
func (o *Order) one(ctx context.Context, a awaited, q Queue, t Fence) (over bool, err error) {
	page, err := o.Pages(ctx, t.Timeline)
	if err != nil {
		return false, err
	}
	over, err = page.seen(t)
	if !over {
		if clock, err := o.Clock(ctx); err == nil && clock.owns(t, q) {
			return false, nil
		}
		err = q.wait(ctx, page, t)
		over = err == nil && q.orderKey() == nil
	}
	if errors.Is(err, ErrContentFailed) && (!a.strict || slices.Contains(a.older, t)) {
		return true, nil // a lease for writing needs no complete content
	}
	return over, err
}

// Check returns an error if the memory must have complete content before this process uses it, and this content will never be complete. If
// the writer of the content dies or fails, a stream that waits for the content continues without an error, so only Check finds the failure.
//
// Errors: [ErrContentFailed], [ErrProducerDied].
func (o *Order) Check(ctx context.Context) error {
	o.mu.Lock()
	now := o.awaited
	o.mu.Unlock()
	if !now.strict {
		return nil
	}
	for _, t := range now.fences {
		page, err := o.Pages(ctx, t.Timeline)
		if err == nil {
			_, err = page.seen(t)
		}
		if err != nil && !slices.Contains(now.older, t) {
			return err
		}
	}
	return nil
}

// Give makes later work in the caller's queue q wait for everything that must happen before this process uses the memory, and for the work
// that this package has begun on the memory. The parameter `own` is the memory's own queue.
//
// Errors: as [Order.Before].
func (o *Order) Give(ctx context.Context, own, q Queue) error {
	if err := o.Before(ctx, q); err != nil {
		return err
	}
	o.mu.Lock()
	_, given := o.given[q.orderKey()]
	uses := o.uses
	o.named = o.named || q.orderKey() != nil
	nothing := !o.used || given || own.orderKey() == q.orderKey()
	o.mu.Unlock()
	if nothing {
		return nil
	}
	clock, err := o.Clock(ctx)
	if err != nil {
		clock = nil
	}
	t, err := clock.Signal(own)
	if err == nil && t != nil {
		err = q.wait(ctx, clock.page, *t)
	}
	if err == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.given == nil {
			o.given = make(map[any]struct{})
		}
		if o.uses == uses { // otherwise there is more work, for which q does not wait
			o.given[q.orderKey()] = struct{}{}
		}
	}
	return err
}

// AwaitAccess waits until the caller may access the memory by its address. If [Order.Give] has made a queue of the caller wait for something,
// AwaitAccess does not wait for the same thing.
//
// Errors: as [Order.Before].
func (o *Order) AwaitAccess(ctx context.Context, m Memory) error {
	o.mu.Lock()
	told, unsaid := len(o.fences) == 0 || o.named, o.used && len(o.given) == 0
	o.mu.Unlock()
	if !told {
		if err := o.Before(ctx, CPU); err != nil {
			return err
		}
	}
	if unsaid {
		return m.Synchronize()
	}
	return nil
}

// Use notes that this package has begun, or ended, work on the memory in the memory's own queue.
func (o *Order) Use() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used = true
	o.uses++
	clear(o.given)
}

// Ready returns one fence: when it is reached, the content is complete. Ready returns nil if the content is complete already. If several
// queues work on the content, Ready makes the first queue wait for the other queues. If c.Ready is a fence, Ready first waits on the CPU
// for the work in all queues, and then returns c.Ready. It does not make a queue wait for c.Ready, because the caller may never reach this
// fence.
//
// Errors: [ErrInvalid] if the fields of c contradict each other, or if the event was not recorded or cannot mark the completion of the
// content.
func (o *Order) Ready(ctx context.Context, own Queue, c Completion) (*Fence, error) {
	if err := c.possible(); err != nil {
		return nil, err
	}
	queues := o.queues(own, c.After)
	if c.Ready != nil {
		for _, q := range queues {
			if err := q.synchronize(); err != nil {
				return nil, err
			}
		}
		return c.Ready, nil
	}
	if c.Event != nil && len(queues) == 0 {
		queues = []Queue{c.Event.line(own)}
	}
	if len(queues) == 0 {
		return nil, nil
	}
	if c.Event != nil {
		if err := c.Event.Before(ctx, queues[0]); err != nil {
			return nil, err
		}
	}
	return o.joined(ctx, queues)
}

// joined makes one fence for all work that is now in the queues, or returns nil if all work is done. It makes the first queue wait for the
// other queues.
func (o *Order) joined(ctx context.Context, queues []Queue) (*Fence, error) {
	clock, err := o.Clock(ctx)
	if err != nil {
		clock = nil // without a clock, Signal waits for the work
	}
	for _, q := range queues[1:] {
		t, err := clock.Signal(q)
		if t != nil && err == nil {
			err = queues[0].wait(ctx, clock.page, *t)
		}
		if err != nil {
			return nil, err
		}
	}
	return clock.Signal(queues[0])
}

// queues returns the queues that may still have work on the memory: the named queues, and the memory's own queue if it has work of this
// package that no named queue waits for.
func (o *Order) queues(own Queue, named []Queue) (queues []Queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	covered := !o.used
	for _, q := range named {
		if key := q.orderKey(); key != nil {
			queues = append(queues, q)
			_, given := o.given[key]
			covered = covered || given || key == own.orderKey()
		}
	}
	if !covered && own.orderKey() != nil {
		queues = append(queues, own)
	}
	return queues
}

// Ended notes that the caller has transferred the memory with the completion c. After this call, this process only reads the memory, and
// only after the fence `ready` is reached.
func (o *Order) Ended(ready *Fence, c Completion) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.strict {
		o.older = slices.Clone(o.fences)
	}
	o.strict, o.told, o.named = true, nil, false
	o.ends++
	if c.Event != nil {
		o.ready = readyEvent{handle: c.Event.Handle(), event: c.Event}
	}
	if ready != nil {
		o.fences = append(slices.Clip(o.fences), *ready)
	}
}

// After makes fences: when all of them are reached, this process does not use the memory any more. It makes one fence for this package's
// work in the memory's own queue, and one fence for each queue in `others`. If it cannot make one, it waits for all these queues, also after
// the end of ctx.
func (o *Order) After(ctx context.Context, own Queue, others ...Queue) ([]Fence, error) {
	queues := o.queues(own, others)
	if len(queues) == 0 {
		return nil, nil
	}
	clock, err := o.Clock(ctx)
	if err != nil {
		clock = nil // without a clock, Signal waits for the work
	}
	var done []Fence
	for _, q := range queues {
		t, err := clock.Signal(q)
		if err != nil {
			return nil, finish(queues)
		}
		if t != nil {
			done = append(done, *t)
		}
	}
	return done, nil
}

// AfterOne is like [Order.After], but makes only one fence. It returns nil if no work is left to wait for. If there are several queues,
// AfterOne makes the first queue wait for the other queues, or waits for all of them itself.
func (o *Order) AfterOne(ctx context.Context, own Queue, others ...Queue) (*Fence, error) {
	queues := o.queues(own, others)
	if len(queues) == 0 {
		return nil, nil
	}
	t, err := o.joined(ctx, queues)
	if err != nil {
		return nil, finish(queues)
	}
	return t, nil
}

// finish waits for the work of queues for which no fences could be made: without fences, the memory's next user waits for nothing.
func finish(queues []Queue) error {
	var errs []error
	for _, q := range queues {
		errs = append(errs, insist(q.synchronize))
	}
	return errors.Join(errs...)
}
