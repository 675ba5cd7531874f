package situation

import (
	"context"
	"errors"
	"fmt"
)

// Ended returns the error of a context that has ended. The error wraps the context's Err, and also the context's cause if the cause is
// another error.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
