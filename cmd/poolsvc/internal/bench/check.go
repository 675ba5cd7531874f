package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// LeastRounds is the least number of rounds whose spread can be told.
const LeastRounds = 3

// smallest is the least change that counts, as a share of the figure before. Two runs differ by that much because the service and the workers
// are other processes, in other places of the memory.
const smallest = 0.1

// FileError is the error of a file that cannot be compared with.
type FileError struct{ Path, Problem string }

func (e *FileError) Error() string {
	return fmt.Sprintf("%s: %s; expected the JSON that poolsvc bench --json printed on this machine", e.Path, e.Problem)
}

// Read reads the report of an earlier run.
func Read(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &FileError{path, err.Error()}
	}
	r := &Report{file: path}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, &FileError{path, err.Error()}
	}
	if !slices.ContainsFunc(r.Results, func(r Result) bool { return len(r.Rounds) >= LeastRounds }) {
		return nil, &FileError{path, fmt.Sprintf("it has no result with %d rounds or more", LeastRounds)}
	}
	return r, nil
}

// Check is how a run differs from an earlier one.
type Check struct {
	File string `json:"file"`
	// Changed are the pairs of results that got worse or better by more than their spread. Same is the number of the others.
	Changed []Change `json:"changed"`
	Same    int      `json:"same"`
	// Alone are the results that were compared with nothing.
	Alone []Alone `json:"alone"`
	// Warnings say how the circumstances of the two runs differ.
	Warnings []string `json:"warnings"`
}

// Change is a pair of results, and what changed.
type Change struct {
	Workload string `json:"workload"`
	Kind     string `json:"kind"`
	Bytes    uint64 `json:"bytes"`
	// Verdict is "worse" if at least one figure got worse, else "better". Pairs that did not change are not listed.
	Verdict string   `json:"verdict"`
	Figures []Figure `json:"figures"`

	of string // the workload that measures it
}

// These are the verdicts of a Change.
const (
	worse  = "worse"
	better = "better"
)

// Figure is a figure that changed by more than its spread: p50_us, or mean_us, which is 1,000,000 divided by per_second.
type Figure struct {
	Name   string `json:"name"`
	Before Spread `json:"before"`
	After  Spread `json:"after"`
}

// Spread has the value of a figure in the best round, and the median of the rounds. Other work on the machine makes rounds only slower, so the
// best rounds of two runs differ least. How many times the best round the median is says by which factor chance may move the best round.
type Spread struct {
	Best   float64 `json:"best"`
	Median float64 `json:"median"`
}

// Alone is a result that was compared with nothing.
type Alone struct {
	Workload string `json:"workload"`
	Kind     string `json:"kind"`
	Bytes    uint64 `json:"bytes"`
	System   string `json:"system"`
	Why      string `json:"why"`
}

// Worse reports whether a pair got worse.
func (c *Check) Worse() bool { return c != nil && slices.ContainsFunc(c.Changed, Change.isWorse) }

func (c Change) isWorse() bool { return c.Verdict == worse }

// refuse returns an error if the figures of the two machines cannot be compared.
func refuse(path string, before, now verify.Machine) error {
	gpus := func(m verify.Machine) (all []string) {
		for _, d := range m.Devices {
			all = append(all, d.Name+" "+d.UUID)
		}
		return all
	}
	for _, one := range []struct {
		what        string
		before, now any
	}{
		{"architecture", before.Arch, now.Arch}, {"CPUs", before.CPUs, now.CPUs}, {"GPUs", gpus(before), gpus(now)},
		{"a simulated GPU", before.Simulated, now.Simulated}, {"a native module in Python", before.Native, now.Native},
	} {
		if was, is := fmt.Sprint(one.before), fmt.Sprint(one.now); was != is {
			return &FileError{path, fmt.Sprintf("it is of another machine (%s: %s, and here %s), whose figures say nothing about this one", one.what, was, is)}
		}
	}
	return nil
}

// warnings says how the circumstances of the two runs differ. A new version may be just what the user wants to check.
func warnings(before, now *Report) []string {
	all := []string{}
	differs := func(what, was, is string) {
		if was != is {
			all = append(all, fmt.Sprintf("%s: %s before, %s now", what, cmp.Or(was, "none"), cmp.Or(is, "none")))
		}
	}
	differs("poolsvc", before.Version, now.Version)
	differs("kernel", before.Machine.Kernel, now.Machine.Kernel)
	differs("CUDA", fmt.Sprint(before.Machine.CUDA), fmt.Sprint(now.Machine.CUDA))
	differs("Python", before.Machine.Python, now.Machine.Python)
	packages := maps.Clone(before.Machine.Packages)
	maps.Copy(packages, now.Machine.Packages)
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		differs(name, before.Machine.Packages[name], now.Machine.Packages[name])
	}
	for _, r := range []struct {
		which string
		*Report
	}{{"earlier", before}, {"present", now}} {
		if busy(r.Load, r.Machine.CPUs) {
			all = append(all, fmt.Sprintf("the machine was busy in the %s run: %.1f programs ran on %d CPUs", r.which, r.Load, r.Machine.CPUs))
		}
	}
	return all
}

// compare compares a run with an earlier one.
func compare(before, now *Report) *Check {
	c := &Check{File: before.file, Changed: []Change{}, Alone: []Alone{}, Warnings: warnings(before, now)}
	earlier := make(map[[4]string]Result)
	for _, r := range before.Results {
		earlier[r.key()] = r
	}
	alone := func(r Result, why string) {
		c.Alone = append(c.Alone, Alone{r.Workload, r.Kind, r.Bytes, r.System, why})
	}
	for _, r := range now.Results {
		was, there := earlier[r.key()]
		delete(earlier, r.key())
		switch {
		case !there:
			alone(r, "not in the file")
		case min(len(was.Rounds), len(r.Rounds)) < LeastRounds:
			alone(r, fmt.Sprintf("fewer than %d rounds", LeastRounds))
		default:
			if change := r.since(was); len(change.Figures) > 0 {
				c.Changed = append(c.Changed, change)
			} else {
				c.Same++
			}
		}
	}
	for _, r := range before.Results {
		if _, left := earlier[r.key()]; left {
			alone(r, "not measured now")
		}
	}
	return c
}

// since returns which figures have changed since an earlier result.
func (r Result) since(before Result) Change {
	c := Change{Workload: r.Workload, Kind: r.Kind, Bytes: r.Bytes, Verdict: better, of: r.of}
	for _, figure := range []struct {
		name string
		of   func(Round) *float64
	}{
		{"p50_us", func(r Round) *float64 { return r.P50 }},
		{"mean_us", Round.mean},
	} {
		was, is := spread(before.Rounds, figure.of), spread(r.Rounds, figure.of)
		by := is.Best / was.Best
		if !(max(by, 1/by) > max(was.Median/was.Best, is.Median/is.Best, 1+smallest)) { // also if a figure is missing
			continue
		}
		if by > 1 {
			c.Verdict = worse
		}
		c.Figures = append(c.Figures, Figure{figure.name, was, is})
	}
	return c
}

// mean returns the time of an operation with the time between operations, in microseconds.
func (r Round) mean() *float64 {
	if r.PerSecond == 0 {
		return nil
	}
	us := 1e6 / r.PerSecond
	return &us
}

// spread returns the spread of a figure, or zeros if a round lacks the figure.
func spread(rounds []Round, of func(Round) *float64) Spread {
	var values []float64
	for _, r := range rounds {
		value := of(r)
		if value == nil {
			return Spread{}
		}
		values = append(values, *value)
	}
	slices.Sort(values)
	return Spread{values[0], values[len(values)/2]}
}

// confirm drops the changes that another measurement does not show, too.
func (c *Check) confirm(again *Check) {
	kept := slices.DeleteFunc(slices.Clone(c.Changed), func(one Change) bool {
		return !slices.ContainsFunc(again.Changed, func(other Change) bool {
			return other.Verdict == one.Verdict && other.Workload == one.Workload && other.Kind == one.Kind && other.Bytes == one.Bytes
		})
	})
	c.Same += len(c.Changed) - len(kept)
	c.Changed = kept
}

// Print writes the check for a person.
func (c *Check) Print(w io.Writer) {
	for _, warning := range c.Warnings {
		fmt.Fprintf(w, "%s  %s\n", display.Neutral.Render("warning"), warning)
	}
	for _, one := range c.Changed {
		style := display.Good
		if one.isWorse() {
			style = display.Bad
		}
		var figures []string
		for _, f := range one.Figures {
			figures = append(figures, fmt.Sprintf("%s %+.0f %%: %s, before %s", f.Name, 100*(f.After.Best/f.Before.Best-1), f.After, f.Before))
		}
		fmt.Fprintf(w, "%s  %s %s %s  %s\n", style.Render(fmt.Sprintf("%-7s", one.Verdict)), one.Workload, one.Kind, sizeOf(one.Bytes), strings.Join(figures, "; "))
	}
	alone := make(map[string][]string) // by the reason
	for _, one := range c.Alone {
		alone[one.Why] = append(alone[one.Why], strings.Join([]string{one.Workload, one.Kind, sizeOf(one.Bytes), one.System}, " "))
	}
	for _, why := range slices.Sorted(maps.Keys(alone)) {
		fmt.Fprintf(w, "%s  %s: %s\n", display.Neutral.Render("alone  "), why, strings.Join(alone[why], "; "))
	}
	fmt.Fprintf(w, "%d changed, %d differ by no more than the spread of their rounds, %d were compared with nothing\n", len(c.Changed), c.Same, len(c.Alone))
}

func (s Spread) String() string { return fmt.Sprintf("%.4g (median %.4g)", s.Best, s.Median) }
