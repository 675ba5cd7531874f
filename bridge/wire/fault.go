package wire

import (
	"errors"
	"fmt"
	"strings"
)

// PacketError says why a packet is malformed. It wraps ErrProtocol.
type PacketError struct {
	Offset int    // position in the packet
	Reason string // what is wrong at this position
}

func (e *PacketError) Error() string {
	return fmt.Sprintf("malformed packet: at byte %d: %s", e.Offset, e.Reason)
}

// Unwrap returns ErrProtocol.
func (e *PacketError) Unwrap() error { return ErrProtocol }

// FieldError says that a key of a message has a value that is not allowed. If the message was received, FieldError wraps ErrProtocol. If
// the message is to be sent, FieldError wraps CodeInvalid.
type FieldError struct {
	Message  string // the message's name: an operation, a notice or "error"
	Key      string // path of the key, for example "l.t.sh[2]"
	Expected string
	Found    string
	Code     Code
}

func (e *FieldError) Error() string {
	where := e.Key
	if e.Message != "" {
		where = strings.TrimSuffix(e.Message+": "+where, ": ")
	}
	return fmt.Sprintf("%s: expected %s, found %s", where, e.Expected, e.Found)
}

// Unwrap returns the code.
func (e *FieldError) Unwrap() error { return e.Code }

// UnknownError says that a well-formed packet names an operation or notice that this package does not know. It wraps
// CodeUnsupported. The connection stays usable: a service answers the request, a client ignores the notice.
type UnknownError struct {
	What string // "operation" or "notice"
	Name string
}

func (e *UnknownError) Error() string { return fmt.Sprintf("unknown %s %q", e.What, e.Name) }

// Unwrap returns CodeUnsupported.
func (e *UnknownError) Unwrap() error { return CodeUnsupported }

// under puts `key` in front of the path of a FieldError.
func under(key string, err error) error {
	fe, ok := errors.AsType[*FieldError](err)
	switch {
	case !ok:
		return err
	case fe.Key == "" || fe.Key[0] == '[':
		fe.Key = key + fe.Key
	default:
		fe.Key = key + "." + fe.Key
	}
	return fe
}

// of sets the Message of a FieldError to `message`.
func of(message string, err error) error {
	if fe, ok := errors.AsType[*FieldError](err); ok {
		fe.Message = message
	}
	return err
}
