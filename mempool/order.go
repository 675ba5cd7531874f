package mempool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// OrderLimit is how long a call waits on the CPU for work of others that it must come after, where no context says less.
const OrderLimit = 30 * time.Second

// Order is what must have happened before a lease's memory is used, and what of this process uses it. Its zero value has
// nothing to wait for.
type Order struct {
	// Pages finds a timeline that a fence names.
	Pages func(ctx context.Context, timeline uint64) (*Page, error)
	// Clock makes the fences of this process's own work; nil where there is none.
	Clock func(ctx context.Context) (*Clock, error)

	mu      sync.Mutex
	wait    []Fence
	strict  bool // content that was not finished is an error, not just a wait that ended
	told    map[any]struct{}
	ready   readyEvent
	opened  []*Event         // to be closed
	vouched Queue            // comes after the event that was transferred alone
	used    bool             // work that this package began may be under way
	given   map[any]struct{} // queues that come after it
}

// Begin sets what must be waited for. A lease that reads wants complete content: strict.
func (o *Order) Begin(wait []Fence, strict bool) { o.wait, o.strict = wait, strict }

// Before makes what comes next in the queue come after what must be waited for. A nil Order waits for nothing.
//
// Errors: [ErrTimeout] and the context's if the CPU had to wait, [ErrProducerDied], [ErrUnavailable] where an event must be
// waited for that cannot be opened here.
func (o *Order) Before(ctx context.Context, q Queue) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wait) == 0 && !o.ready.alone {
		return nil
	}
	key := q.orderKey()
	if _, done := o.told[key]; done && key != nil {
		return nil
	}
	left := o.wait[:0:0]
	for _, t := range o.wait {
		over, err := o.one(ctx, q, t)
		if err != nil {
			return err
		}
		if !over {
			left = append(left, t)
		}
	}
	o.wait = left
	if o.ready.alone {
		e, err := o.openEvent()
		if err == nil {
			err = e.Before(ctx, q)
		}
		if err != nil {
			return err
		}
		o.ready.alone = key != nil
	}
	if key != nil {
		if o.told == nil {
			o.told = make(map[any]struct{})
		}
		o.told[key] = struct{}{}
	}
	return nil
}

// one makes the queue wait for one fence, and tells whether nobody has to any more.
func (o *Order) one(ctx context.Context, q Queue, t Fence) (over bool, err error) {
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
	if errors.Is(err, ErrProducerDied) && !o.strict {
		return true, nil // the session that used the memory before does nothing more
	}
	return over, err
}

// Check says whether what was waited for did happen: a stream goes on too when its writer died.
//
// Errors: [ErrProducerDied].
func (o *Order) Check(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.strict {
		return nil
	}
	for _, t := range o.wait {
		page, err := o.Pages(ctx, t.Timeline)
		if err == nil {
			_, err = page.seen(t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Give makes a queue of the caller's come after all that must happen before the memory is used, and after what this package
// did with the memory, whose own queue is own.
//
// Errors: as [Order.Before].
func (o *Order) Give(ctx context.Context, own, q Queue) error {
	if err := o.Before(ctx, q); err != nil {
		return err
	}
	o.mu.Lock()
	_, given := o.given[q.orderKey()]
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
		o.given[q.orderKey()] = struct{}{}
	}
	return err
}

// AwaitAccess returns when the memory can be used through its address, unless a queue was made to wait for that.
//
// Errors: as [Order.Before].
func (o *Order) AwaitAccess(ctx context.Context, m Memory) error {
	o.mu.Lock()
	told, unsaid := (len(o.wait) == 0 && !o.ready.alone) || len(o.told) > 0, o.used && len(o.given) == 0
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

// Use notes that this package began work on the memory in the memory's own queue.
func (o *Order) Use() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used = true
	clear(o.given)
}

// Ready makes the one fence that stands for all that the content waits for; nil if it is complete. Of several queues the
// first that c names waits for the others. A fence that the caller made itself stands alone: what was begun besides is
// waited for here, for no queue may wait for what its owner may never do; and so does an event that is to stand alone.
//
// Errors: [ErrInvalid] for an event that says nothing.
func (o *Order) Ready(ctx context.Context, own Queue, c Completion) (*Fence, error) {
	if err := c.possible(); err != nil {
		return nil, err
	}
	queues := o.queues(own, c.After)
	if c.Ready != nil || c.EventOnly {
		for _, q := range queues {
			if err := q.synchronize(); err != nil {
				return nil, err
			}
		}
		if c.EventOnly { // what uses the memory after this lease must come after the event too
			line := c.Event.line(own)
			if err := c.Event.Before(ctx, line); err != nil {
				return nil, err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.vouched = line
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

// joined makes one fence of what several queues hold now, of which the first waits for the others; nil if all is done.
func (o *Order) joined(ctx context.Context, queues []Queue) (*Fence, error) {
	clock, err := o.Clock(ctx)
	if err != nil {
		clock = nil // without one the work is waited for
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

// queues are those whose work the memory waits for: those that the caller names, and the memory's own if this package did
// something that none of them comes after.
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
	if v := o.vouched; v != nil && v.orderKey() != nil && !slices.Contains(queues, v) {
		queues = append(queues, v)
	}
	return queues
}

// Ended notes that the memory was transferred as c says and is only read from now on, when ready is reached.
func (o *Order) Ended(ready *Fence, c Completion) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.strict, o.told = true, nil
	if c.Event != nil {
		o.ready = readyEvent{handle: c.Event.Handle(), alone: c.EventOnly, event: c.Event}
	}
	if ready != nil {
		o.wait = append(o.wait, *ready)
	}
}

// After makes the fences that end the use of the memory: of what this package did in the memory's own queue, and of
// other queues that the caller names.
func (o *Order) After(ctx context.Context, own Queue, others ...Queue) ([]Fence, error) {
	queues := o.queues(own, others)
	if len(queues) == 0 {
		return nil, nil
	}
	clock, err := o.Clock(ctx)
	if err != nil {
		clock = nil // without one the work is waited for
	}
	var done []Fence
	for _, q := range queues {
		t, err := clock.Signal(q)
		if err != nil {
			return nil, err
		}
		if t != nil {
			done = append(done, *t)
		}
	}
	return done, nil
}

// AfterOne is [Order.After] where there is place for one fence only, nil if nothing is left to wait for. Of several queues the first
// waits for the others.
func (o *Order) AfterOne(ctx context.Context, own Queue, others ...Queue) (*Fence, error) {
	queues := o.queues(own, others)
	if len(queues) == 0 {
		return nil, nil
	}
	return o.joined(ctx, queues)
}
