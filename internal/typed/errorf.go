// Package typed makes errors that have a type, which is a sentinel for [errors.Is], and a text for people.
package typed

import "fmt"

// Errorf returns an error that wraps a sentinel and adds a text. The text should say what the code expected, what it found, and what the reader
// of the text should do.
func Errorf(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))
}
