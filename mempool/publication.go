package mempool

import "github.com/poolbridge/poolbridge/internal/situation"

// Publication says how a buffer is published.
type Publication struct {
	Name string
	// Tensor describes the content anew, where it is not what the buffer was allocated for.
	Tensor *Tensor
	// Keep the name when the session ends.
	Keep bool
	// Replace an existing name of the same user.
	Replace bool
	Completion
}

// Completion says when content is complete, where that is not when it is transferred: at the latest of what it names.
type Completion struct {
	// After are queues whose work makes the content, besides what this package does with the memory.
	After []Queue
	// Ready is a fence of the session's own timeline.
	Ready *Fence
	// Event is an interprocess event that was recorded after all the work. It must stay open until the readers have opened it.
	// A fence that comes after it is made as well, unless EventOnly says that the event is all that readers of memory of a GPU
	// are given to wait for.
	Event     *Event
	EventOnly bool
}

// possible says whether this process can complete content so.
func (c Completion) possible() error {
	switch {
	case c.EventOnly && (c.Event == nil || c.Ready != nil):
		return situation.Of(ErrInvalid, "an event that is to stand alone comes without a fence, and must be named")
	case c.Event == nil || c.Ready != nil:
		return nil
	}
	return c.Event.sendable()
}

// Handle is the handle of the event as it goes along: none where nothing has to be waited for.
func (c Completion) Handle(ready *Fence) []byte {
	if c.Event == nil || (ready == nil && !c.EventOnly) {
		return nil
	}
	return c.Event.Handle()
}
