package anomaly

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// fault is a result with which a driver call fails, and the error codes that the client may then get.
type fault struct {
	error string
	codes []string
	once  bool // the fault is tested on one kind only, because clients get the same error as for another fault
}

var faults = []fault{
	{error: "OUT_OF_MEMORY", codes: []string{"memory", "unavailable"}},
	{error: "INVALID_VALUE", codes: []string{"invalid", "unavailable"}},
	{error: "NOT_SUPPORTED", codes: []string{"unavailable", "invalid"}},
	{error: "NOT_PERMITTED", codes: []string{"internal", "unavailable"}, once: true},
}

// tried are the faults of a run: with -short, the first; test-long runs all.
func tried() []fault {
	if testing.Short() {
		return faults[:1]
	}
	return faults
}

// triedKinds are the kinds of the tests that start the most processes: with -short, the first.
func triedKinds() []mempool.Kind {
	if testing.Short() {
		return kinds[:1]
	}
	return kinds
}

// rule returns a rule for the simulated driver: the kth driver call after arm fails.
func (f fault) rule(k int) string {
	return fmt.Sprintf("call=* error=%s nth=%d", f.error, k)
}

// told returns an error if a client must not get err for the fault.
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
