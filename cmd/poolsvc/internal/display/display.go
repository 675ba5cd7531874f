// Package display writes what a service tells for people.
package display

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Printable is a text that a client chose, without what a terminal would obey; "-" if there is none.
func Printable(text string) string {
	if text == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// Age is a time span in at most two units.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
