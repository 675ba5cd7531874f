package wire

// Code is an error code of the protocol. Later versions of the protocol do not change the text of an error code. A Code is itself an error,
// so errors.Is(err, wire.CodeNotFound) is true for every error that wraps this code.
type Code string

// These are the error codes of protocol version 1. A peer of a later version may send other codes.
const (
	CodeProtocol      Code = "protocol"       // a packet is malformed or comes at the wrong time; the connection is then closed
	CodeVersion       Code = "version"        // the peers share no protocol version
	CodeUnsupported   Code = "unsupported"    // unknown operation or feature
	CodeInvalid       Code = "invalid"        // an argument is out of range, has a wrong form or contradicts another argument
	CodeNotFound      Code = "not-found"      // no such pool or name, for this user
	CodeExists        Code = "exists"         // the name is taken
	CodeLimit         Code = "limit"          // a limit of the pool, of the session, of the user or of the service is reached
	CodeMemory        Code = "memory"         // the device or the machine is out of memory
	CodeDenied        Code = "denied"         // the peer may not carry out the operation
	CodeTimeout       Code = "timeout"        // the time limit passed before the requested thing appeared
	CodeBusy          Code = "busy"           // the buffer is leased in a way that excludes this lease
	CodeCancelled     Code = "cancelled"      // the client has cancelled the waiting request
	CodeReleased      Code = "released"       // the lease has ended
	CodeStale         Code = "stale"          // the id is of an earlier use of the block, or of another epoch
	CodeFailed        Code = "failed"         // the process that wrote the buffer died before finishing
	CodeContentFailed Code = "content-failed" // the process that wrote the buffer says that it cannot finish
	CodeClosed        Code = "closed"         // the pool is being destroyed, or the service is shutting down
	CodeUnavailable   Code = "unavailable"    // this machine does not support the operation
	CodeInternal      Code = "internal"       // the service has a defect
)

// ErrProtocol is the error of a malformed packet. Every error about such a packet wraps it.
const ErrProtocol = CodeProtocol

// Error returns the code as a string, in the form that it has in a packet.
func (c Code) Error() string { return string(c) }
