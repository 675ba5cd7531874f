package wire

// NewRequest and NewNotice make an empty request or notice by its name.
var (
	NewRequest = newRequest
	NewNotice  = newNotice
)
