package mempool

// Publication says how a session publishes a buffer.
type Publication struct {
	Name string
	// Tensor describes the content. nil means that the content has the description with which the buffer was allocated.
	Tensor *Tensor
	// If Keep is true, the service keeps the name when the session ends. With Replace, the newest publication decides: without Keep, a name
	// that was kept before ends with the session that replaced it.
	Keep bool
	// If WhileUsed is true, and Keep is not, the name does not end with the session, but with the last lease of the buffer, and when the content
	// has failed.
	WhileUsed bool
	// If Replace is true and the same user has already published another buffer under this name, the name now belongs to the new buffer. If
	// Replace is false, the publication fails in this case.
	Replace bool
	// Version is more than that of the content that is replaced. 0 means one more than that, or 1 if nothing is replaced.
	Version uint64
	Completion
}

// Completion says when the content of a transferred buffer is complete. With the zero value, the content is complete when the transfer
// happens. Otherwise the content is complete when everything in the fields of the Completion has happened.
type Completion struct {
	// After has the queues in which the caller's work writes the content. The transfer also waits for the work that this package has begun
	// on the memory: the memory's own queue need not be in After.
	After []Queue
	// Ready is a fence of the session's own timeline. The caller marks it as reached when the content is complete.
	Ready *Fence
	// Event is an interprocess event. The caller must have recorded it after all the work that writes the content, and must keep it open until
	// the readers have opened it. The transfer also makes a fence that is reached after the event.
	Event *Event
}

// possible returns an error if the fields of c contradict each other, or if the event cannot mark the completion of the content.
func (c Completion) possible() error {
	if c.Event == nil || c.Ready != nil {
		return nil
	}
	return c.Event.sendable()
}

// Handle returns the handle of the event of c. The session sends this handle with the content. Handle returns nil if c has no event, or if
// the content is complete already. The parameter `ready` is the result of [Order.Ready] for c.
func (c Completion) Handle(ready *Fence) []byte {
	if c.Event == nil || ready == nil {
		return nil
	}
	return c.Event.Handle()
}
