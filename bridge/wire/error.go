package wire

import (
	"errors"
	"strings"
)

// Error is the failure of a request as it travels in a reply. errors.Is finds its Code.
type Error struct {
	Code    Code
	Message string // text for people: what was expected, what came, what to do
}

var errorFields = record[Error]{
	codeField("c", func(m *Error) *Code { return &m.Code }),
	stringField("m", func(m *Error) *string { return &m.Message }),
}

// Error returns the message with its code in front.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

// AsError returns what to answer for err: the *Error in its chain if there is one, otherwise err's text with the Code
// in its chain, and CodeInternal where there is none.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if c, ok := errors.AsType[Code](err); ok {
		return &Error{Code: c, Message: err.Error()}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// sendable returns e, or a copy whose message fits a packet: valid UTF-8 and no longer than MaxString.
func (e *Error) sendable() *Error {
	text := strings.ToValidUTF8(e.Message, "\uFFFD")
	if len(text) > MaxString {
		text = strings.ToValidUTF8(text[:MaxString], "")
	}
	if text == e.Message {
		return e
	}
	return &Error{Code: e.Code, Message: text}
}
