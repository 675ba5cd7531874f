package verify

import (
	"fmt"
	"io"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

// Status says how a check ended.
type Status string

// These are the ways in which a check can end.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Result is the result of one check.
type Result struct {
	// Name has the scenario, the check and the consumer: "transfer/round-trip/cupy".
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Scenario string `json:"scenario"`
	// Consumer is the Python library of the worker, or "go". Direction is "to-consumer" if this process writes the data first, or
	// "from-consumer" if the worker writes the data first.
	Consumer  string `json:"consumer"`
	Direction string `json:"direction"`
	Status    Status `json:"status"`
	Reason    string `json:"reason,omitempty"`
	// Note is a remark about a check that passed.
	Note    string  `json:"note,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Report has the results of all checks.
type Report struct {
	Machine Machine  `json:"machine"`
	Checks  []Result `json:"checks"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	// Seconds is how long the whole run took. The sum of the times of the checks can be greater, because several checks run at the same
	// time.
	Seconds float64 `json:"seconds"`
}

// OK reports whether at least one check passed and no check failed.
func (r *Report) OK() bool { return r.Failed == 0 && r.Passed > 0 }

func (r *Report) add(result Result) {
	r.Checks = append(r.Checks, result)
	switch result.Status {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
}

var styles = map[Status]lipgloss.Style{Passed: display.Good, Failed: display.Bad, Skipped: display.Neutral}

// print writes the result as one line for a person.
func (r Result) print(w io.Writer) {
	line := fmt.Sprintf("%s  %-6s  %-28s %8s", styles[r.Status].Render(fmt.Sprintf("%-7s", r.Status)), r.Kind, r.Name,
		time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond))
	if why := r.Reason + r.Note; why != "" {
		line += "  " + why
	}
	fmt.Fprintln(w, line)
}
