package typed

import (
	"context"
	"errors"
	"fmt"
)

// Ended returns an error for a context that has ended. The error wraps the result of ctx.Err. It also wraps the result of context.Cause if
// that is a different error.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
