// Package situation makes errors of a situation that callers can ask for, and of words for people.
package situation

import "fmt"

// Of wraps the sentinel of a situation with what was expected, what came, and what to do.
func Of(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))
}
