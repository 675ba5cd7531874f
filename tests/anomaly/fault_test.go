package anomaly

import (
	"errors"
	"fmt"
	"slices"

	"github.com/poolbridge/poolbridge/bridge"
)

// fault is how a driver call fails, and what the client may be told then.
type fault struct {
	error string
	codes []string
	once  bool // enough to see it on one kind: it is told as another is
}

var faults = []fault{
	{error: "OUT_OF_MEMORY", codes: []string{"memory", "unavailable"}},
	{error: "INVALID_VALUE", codes: []string{"invalid", "unavailable"}},
	{error: "NOT_SUPPORTED", codes: []string{"unavailable", "invalid"}},
	{error: "NOT_PERMITTED", codes: []string{"internal", "unavailable"}, once: true},
}

// rule fails the kth call from now on.
func (f fault) rule(k int) string {
	return fmt.Sprintf("call=* error=%s nth=%d", f.error, k)
}

// told says whether err is what a client is told of the fault.
func (f fault) told(err error) error {
	if err == nil {
		return nil
	}
	code := bridge.Code(err)
	if failed, ok := errors.AsType[*failure](err); ok {
		code = failed.code
	}
	if !slices.Contains(f.codes, code) {
		return fmt.Errorf("%s became %q (%w), not one of %q", f.error, code, err, f.codes)
	}
	return nil
}
