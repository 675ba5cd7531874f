package wire

// NewRequest and NewNotice make an empty one of each request and notice, by name.
var (
	NewRequest = newRequest
	NewNotice  = newNotice
)
