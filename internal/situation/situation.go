// Package situation makes errors that have a sentinel for [errors.Is] and a text for people.
package situation

import "fmt"

// Of wraps a sentinel with a text. The text says what was expected, what was found, and what to do.
func Of(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))
}
