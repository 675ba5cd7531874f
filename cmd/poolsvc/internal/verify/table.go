package verify

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

var marks = map[Status]string{Passed: "ok", Failed: "FAILED", Skipped: "skip", "": "·"}

// Table writes the results as a matrix: a row for each thing that was tried and by whom, a column for each kind of memory.
func (r *Report) Table(w io.Writer) error {
	var kinds, rows []string
	found := make(map[[2]string]Status)
	for _, c := range r.Checks {
		if !slices.Contains(kinds, c.Kind) {
			kinds = append(kinds, c.Kind)
		}
		if !slices.Contains(rows, c.Name) {
			rows = append(rows, c.Name)
		}
		found[[2]string{c.Name, c.Kind}] = c.Status
	}
	slices.Sort(rows)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "CHECK")
	for _, k := range kinds {
		fmt.Fprint(t, "\t", k)
	}
	fmt.Fprintln(t)
	for _, name := range rows {
		fmt.Fprint(t, name)
		for _, k := range kinds {
			fmt.Fprint(t, "\t", marks[found[[2]string{name, k}]])
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
