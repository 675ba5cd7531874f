package mempool

import "github.com/poolbridge/poolbridge/internal/situation"

// Publication says how a buffer is published.
type Publication struct {
	Name string
	// Tensor describes the content. nil means that the content has the description with which the buffer was allocated.
	Tensor *Tensor
	// Keep means that the name stays when the session ends.
	Keep bool
	// Replace means that the buffer may take over an existing name of the same user.
	Replace bool
	Completion
}

// Completion says when content is complete. With the zero value, the content is complete at the transfer. Otherwise the content is complete
// when everything that the Completion names has happened.
type Completion struct {
	// After has the queues whose work writes the content, besides the work of this package.
	After []Queue
	// Ready is a fence of the session's own timeline.
	Ready *Fence
	// Event is an interprocess event that the caller has recorded after all the work. The event must stay open until the readers have
	// opened it. If EventOnly is false, the transfer also makes a fence that comes after the event. If EventOnly is true, the transfer
	// makes no fence, and readers of memory of a GPU must wait for the event.
	Event     *Event
	EventOnly bool
}

// possible returns an error if the fields of c contradict each other, or if the event cannot mark the completion of the content.
func (c Completion) possible() error {
	switch {
	case c.EventOnly && (c.Event == nil || c.Ready != nil):
		return situation.Of(ErrInvalid, "EventOnly needs an Event, and no fence in Ready")
	case c.Event == nil || c.Ready != nil:
		return nil
	}
	return c.Event.sendable()
}

// Handle returns the handle of the event that is sent with the content. It returns nil if c has no event, or if the content is complete
// already.
func (c Completion) Handle(ready *Fence) []byte {
	if c.Event == nil || (ready == nil && !c.EventOnly) {
		return nil
	}
	return c.Event.Handle()
}
