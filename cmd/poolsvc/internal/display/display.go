// Package display formats texts, sizes and times for people.
package display

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/poolbridge/poolbridge/mempool"
)

// Printable replaces each character of the text that cannot be printed with "?". The reason is that a client chose the text: it could
// contain control characters that change what the terminal shows. If the text is empty, Printable returns "-".
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

// Happened says what an event was and how often. The text of FrameLost has its count, which is that of frames.
func Happened(e mempool.HistoryEvent) string {
	text := Printable(e.Text)
	if e.Count > 1 && e.Kind != mempool.FrameLost {
		text += fmt.Sprintf(" (%d times)", e.Count)
	}
	return text
}

// Content returns the columns DTYPE and SHAPE of a buffer, with sep between them; of several arrays, how to get them, as only leases know them.
func Content(t mempool.Tensor, sep string) string {
	if t.LayoutBytes > 0 {
		return "several arrays" + sep + "client.get_dict(NAME)"
	}
	return fmt.Sprint(t.DType, sep, t.Shape)
}

// Size formats a number of bytes with a unit, for example "1.5MiB". The text has about three digits.
func Size(n uint64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f%s", value, unit)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + unit
}

// Age formats a time span with one unit or two units, for example "5m30s".
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
