package wire

import "errors"

// Error returns the code and the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the code, so that errors.Is finds it.
func (e *Error) Unwrap() error { return e.Code }

// AsError returns the error that the service sends in its reply when a request has failed with err. If err wraps an *Error, AsError returns
// this *Error. Otherwise AsError returns an Error with the text of err and the Code that err wraps, or CodeInternal if err wraps no Code.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if c, ok := errors.AsType[Code](err); ok {
		return &Error{Code: c, Message: err.Error()}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
