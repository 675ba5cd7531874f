package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

var marks = map[Status]string{Passed: "ok", Failed: "FAILED", Skipped: "skip", "": "·"}

// Table writes the results as a matrix. Each row stands for a check and its consumer. Each column stands for a kind of memory. If every
// check of a kind was skipped, Table leaves out the column of this kind, unless all checks of all kinds were skipped.
func (r *Report) Table(w io.Writer) error {
	tried := make(map[string]bool)
	for _, c := range r.Checks {
		tried[c.Kind] = tried[c.Kind] || c.Status != Skipped
	}
	kinds, rows := []string{"CHECK"}, []string{}
	found := make(map[[2]string]Status)
	for _, c := range r.Checks {
		if !tried[c.Kind] && r.Passed+r.Failed > 0 {
			continue
		}
		if !slices.Contains(kinds, c.Kind) {
			kinds = append(kinds, c.Kind)
		}
		if !slices.Contains(rows, c.Name) {
			rows = append(rows, c.Name)
		}
		found[[2]string{c.Name, c.Kind}] = c.Status
	}
	slices.Sort(rows)
	widths := []int{len("CHECK")}
	for _, name := range rows {
		widths[0] = max(widths[0], len(name))
	}
	for _, kind := range kinds[1:] {
		widths = append(widths, max(len(kind), len(marks[Failed])))
	}
	var b strings.Builder
	for i, kind := range kinds {
		fmt.Fprintf(&b, "%-*s", widths[i]+2, kind)
	}
	text := strings.TrimRight(b.String(), " ") + "\n"
	for _, name := range rows {
		text += fmt.Sprintf("%-*s", widths[0], name)
		for i, kind := range kinds[1:] {
			status := found[[2]string{name, kind}]
			mark := marks[status]
			if style, ok := styles[status]; ok {
				mark = style.Render(mark)
			}
			if i+2 < len(kinds) {
				mark += strings.Repeat(" ", widths[i+1]-len([]rune(marks[status])))
			}
			text += "  " + mark
		}
		text += "\n"
	}
	_, err := io.WriteString(display.Coloured(w), text)
	return err
}
