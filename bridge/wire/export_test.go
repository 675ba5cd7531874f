package wire

// NewRequest and NewNotice are maps. The key is the name of an operation or of a notice, and the value is a function that makes an empty
// message with this name.
var (
	NewRequest = newRequest
	NewNotice  = newNotice
)
