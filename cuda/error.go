package cuda

import (
	"errors"
	"strconv"
	"strings"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Error is a failed call into the driver. An Error unwraps to its Result.
type Error struct {
	Op     string // the driver call, or this package's operation if no driver call was made
	Device int    // the device's ordinal, -1 if the call concerns no device
	Result Result
	Detail string // more details, like the text of the loader or of the PTX compiler; often empty
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

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }

// Hopeless reports whether err means that the process can no longer use the object whose method returned err. The reason is that the context is
// broken, the GPU is gone, or the driver has shut down. If the failed call was a call that destroys an object, the object may or may not be
// destroyed, and the caller must not destroy it again.
func Hopeless(err error) bool {
	r, ok := errors.AsType[Result](err)
	return ok && (r.Sticky() || r == ErrUnknown || r == ErrDeinitialized || r == ErrContextIsDestroyed || r == ErrDeviceUnavailable)
}

// noDevice is the Device of an Error that concerns no device.
const noDevice = -1

// failure turns a status into an error, or returns nil for success. op names the operation if the status does not name a driver call.
func failure(st driver.Status, op string, device int) error {
	if st == 0 {
		return nil
	}
	return newError(st, op, device, "")
}

// newError is separate from failure so that the compiler can inline failure.
func newError(st driver.Status, op string, device int, detail string) error {
	if call := st.Call(); call != "" {
		op = call
	}
	return &Error{Op: op, Device: device, Result: Result(st.Result()), Detail: detail}
}

// invalid returns the error for an argument that this package refused before it called the driver.
func invalid(op string, device int, why string) error {
	return &Error{Op: op, Device: device, Result: ErrInvalidValue, Detail: why}
}
