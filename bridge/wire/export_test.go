package wire

// NewRequest and NewNotice are maps. Each name of an operation or of a notice has a function that makes an empty message.
var (
	NewRequest = newRequest
	NewNotice  = newNotice
)
