package wire

// Code is a stable error code. It is an error itself, so that errors.Is(err, wire.CodeNotFound) works on every error
// that carries the code.
type Code string

// The error codes of protocol version 1. A peer of a later version may send other codes.
const (
	CodeProtocol      Code = "protocol"       // malformed packet, or one out of turn; the connection is closed after it
	CodeVersion       Code = "version"        // the peers share no protocol version
	CodeUnsupported   Code = "unsupported"    // unknown operation or feature
	CodeInvalid       Code = "invalid"        // an argument is out of range, of a wrong form or contradicts another
	CodeNotFound      Code = "not-found"      // no such pool, name, buffer or lease
	CodeExists        Code = "exists"         // the name is taken
	CodeLimit         Code = "limit"          // a limit of the pool, of the session, of the user or of the service is reached
	CodeMemory        Code = "memory"         // the device or the machine is out of memory
	CodeDenied        Code = "denied"         // the peer may not do this
	CodeTimeout       Code = "timeout"        // the time limit passed before the thing appeared
	CodeBusy          Code = "busy"           // the buffer is leased in a way that excludes this lease
	CodeCancelled     Code = "cancelled"      // the waiting request was cancelled by its client
	CodeReleased      Code = "released"       // the lease has ended
	CodeStale         Code = "stale"          // the id is of an earlier use of the block, or of another epoch
	CodeFailed        Code = "failed"         // the process that wrote the buffer died before finishing
	CodeContentFailed Code = "content-failed" // the process that wrote the buffer says that it cannot finish
	CodeClosed        Code = "closed"         // the pool is being destroyed, or the service is shutting down
	CodeUnavailable   Code = "unavailable"    // this machine does not support it
	CodeInternal      Code = "internal"       // a fault of the service
)

// ErrProtocol is wrapped by every error about a malformed packet.
const ErrProtocol = CodeProtocol

// Error returns the code as it is sent.
func (c Code) Error() string { return string(c) }
