package cuda

import (
	"errors"
	"strconv"
	"strings"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Error is how a call into the driver failed. It unwraps to its Result.
type Error struct {
	Op     string // the driver call, or this package's operation where no driver call was made
	Device int    // the device's ordinal, -1 where the call concerns none
	Result Result
	Detail string // what else is known: the loader's or the PTX compiler's words; often empty
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cuda: ")
	b.WriteString(e.Op)
	if e.Device >= 0 {
		b.WriteString(" on device ")
		b.WriteString(strconv.Itoa(e.Device))
	}
	b.WriteString(": ")
	b.WriteString(e.Result.Error())
	if e.Detail != "" {
		b.WriteString(" (")
		b.WriteString(e.Detail)
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap gives the Result.
func (e *Error) Unwrap() error { return e.Result }

// Hopeless reports whether err says that the driver does no more for what the
// call was about, in this process: the context is beyond repair, the GPU is gone
// or the driver has shut down. What it was asked to destroy then may be destroyed
// or not, and must not be destroyed again.
func Hopeless(err error) bool {
	r, ok := errors.AsType[Result](err)
	return ok && (r.Sticky() || r == ErrUnknown || r == ErrDeinitialized || r == ErrContextIsDestroyed || r == ErrDeviceUnavailable)
}

// noDevice is the Device of an Error that concerns none.
const noDevice = -1

// failure turns a status into an error, nil for success. op names the operation
// where the status names no call of the driver.
func failure(st driver.Status, op string, device int) error {
	if st == 0 {
		return nil
	}
	return newError(st, op, device, "")
}

// newError is apart from failure so that the latter can be inlined.
func newError(st driver.Status, op string, device int, detail string) error {
	if call := st.Call(); call != "" {
		op = call
	}
	return &Error{Op: op, Device: device, Result: Result(st.Result()), Detail: detail}
}

// invalid is the error for an argument that was refused before the driver saw it.
func invalid(op string, device int, why string) error {
	return &Error{Op: op, Device: device, Result: ErrInvalidValue, Detail: why}
}
