package mempool

import "github.com/poolbridge/poolbridge/internal/situation"

// Publication says how a buffer is published.
type Publication struct {
	Name string
	// Tensor describes the content. nil: the content is what the buffer was allocated for.
	Tensor *Tensor
	// Keep keeps the name when the session ends.
	Keep bool
	// Replace replaces an existing name of the same user.
	Replace bool
	Completion
}

// Completion says when content is complete. With the zero value it is complete when it is transferred. Otherwise it is complete when
// everything that the Completion names has happened.
type Completion struct {
	// After has the queues whose work writes the content, besides the work of this package.
	After []Queue
	// Ready is a fence of the session's own timeline.
	Ready *Fence
	// Event is an interprocess event that was recorded after all the work. It must stay open until the readers have opened it. The transfer also
	// makes a fence that comes after the event, unless EventOnly is set: then readers of memory of a GPU get only the event to wait for.
	Event     *Event
	EventOnly bool
}

// possible returns an error if this process cannot complete content in this way.
func (c Completion) possible() error {
	switch {
	case c.EventOnly && (c.Event == nil || c.Ready != nil):
		return situation.Of(ErrInvalid, "EventOnly needs an Event, and no fence in Ready")
	case c.Event == nil || c.Ready != nil:
		return nil
	}
	return c.Event.sendable()
}

// Handle returns the handle of the event that is sent with the content, or nil if nothing has to be waited for.
func (c Completion) Handle(ready *Fence) []byte {
	if c.Event == nil || (ready == nil && !c.EventOnly) {
		return nil
	}
	return c.Event.Handle()
}
