package situation

import (
	"context"
	"errors"
	"fmt"
)

// Ended returns the error of a context that has ended: its Err, and its cause if that says more.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
