package wire

// NewRequest and NewNotice have a function for each name, which makes an empty request or notice.
var (
	NewRequest = newRequest
	NewNotice  = newNotice
)
