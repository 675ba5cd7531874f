package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

// mostNamed is how many of the skipped checks of one reason the summary names. If there are more, it says how many.
const mostNamed = 3

// Summary writes the checks that failed, and then a line for each reason for which checks were skipped, with the names of these checks and
// their kinds of memory.
func (r *Report) Summary(w io.Writer) {
	out := display.Coloured(w)
	type group struct {
		names, kinds []string
		checks       int
	}
	groups := make(map[string]*group)
	var reasons []string
	for _, c := range r.Checks {
		if c.Status == Failed {
			c.print(out)
		}
		if c.Status != Skipped {
			continue
		}
		g := groups[c.Reason]
		if g == nil {
			g = new(group)
			groups[c.Reason], reasons = g, append(reasons, c.Reason)
		}
		g.checks++
		if name := strings.TrimSuffix(c.Name, "/"+c.Consumer); !slices.Contains(g.names, name) {
			g.names = append(g.names, name)
		}
		if !slices.Contains(g.kinds, c.Kind) {
			g.kinds = append(g.kinds, c.Kind)
		}
	}
	for _, why := range reasons {
		g := groups[why]
		what := strings.Join(g.names, ", ")
		if len(g.names) > mostNamed {
			what = fmt.Sprintf("%d checks", g.checks)
		}
		fmt.Fprintf(out, "%s  %s of %s: %s\n", styles[Skipped].Render(string(Skipped)), what, strings.Join(g.kinds, ", "), why)
	}
}
