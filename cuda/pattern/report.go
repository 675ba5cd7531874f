package pattern

import (
	"fmt"
	"slices"
	"strings"
)

// maxMismatches is how many mismatches a report keeps; the kernels know it too.
const maxMismatches = 8

// Report is what a verification found.
type Report struct {
	Pattern Pattern
	// Elements were looked at.
	Elements uint64
	// Count is how many of them were wrong.
	Count uint64
	// First are the wrong ones with the lowest indices, at most eight, in order.
	First []Mismatch
}

// Mismatch is an element that is not what it ought to be.
type Mismatch struct {
	Index uint64
	// Got is what was seen there, in the low bytes.
	Got uint64
}

// Err is a [*MismatchError] if anything was wrong.
func (r Report) Err() error {
	if r.Count == 0 {
		return nil
	}
	return &MismatchError{r}
}

// add takes in a mismatch; its index is above those before.
func (r *Report) add(m Mismatch) {
	r.Count++
	if len(r.First) < maxMismatches {
		r.First = append(r.First, m)
	}
}

// merge takes in what was found in another part of the memory.
func (r *Report) merge(part Report) {
	r.Count += part.Count
	r.First = append(r.First, part.First...)
	slices.SortFunc(r.First, func(a, b Mismatch) int {
		if a.Index < b.Index {
			return -1
		}
		return 1
	})
	r.First = r.First[:min(len(r.First), maxMismatches)]
}

// MismatchError says where memory differs from its pattern.
type MismatchError struct{ Report Report }

// shown is how many mismatches the error's text has.
const shown = 3

func (e *MismatchError) Error() string {
	r := e.Report
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d elements differ from %v", r.Count, r.Elements, r.Pattern)
	for i, m := range r.First[:min(len(r.First), shown)] {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s[%d] is %s, not %s", sep, m.Index, r.Pattern.Format(m.Got), r.Pattern.Format(r.Pattern.Bits(m.Index)))
	}
	if r.Count > shown {
		b.WriteString(", …")
	}
	return b.String()
}
