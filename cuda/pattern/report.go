package pattern

import (
	"fmt"
	"slices"
	"strings"
)

// maxMismatches is how many mismatches a report keeps. The kernels use the same number.
const maxMismatches = 8

// Report is the result of a verification.
type Report struct {
	Pattern Pattern
	// Elements is how many elements were compared.
	Elements uint64
	// Count is how many of the compared elements were wrong.
	Count uint64
	// First has the wrong elements with the lowest indices, in the order of the indices. It has at most eight elements.
	First []Mismatch
}

// Mismatch is an element with a wrong value.
type Mismatch struct {
	Index uint64
	// Got has, in its low bytes, the bytes that the element has in memory.
	Got uint64
}

// Err returns a [*MismatchError] if at least one element was wrong. Otherwise it returns nil.
func (r Report) Err() error {
	if r.Count == 0 {
		return nil
	}
	return &MismatchError{r}
}

// add adds the mismatch m to r. The index of m must be greater than the indices of all mismatches that were added before.
func (r *Report) add(m Mismatch) {
	r.Count++
	if len(r.First) < maxMismatches {
		r.First = append(r.First, m)
	}
}

// merge adds the report of another part of the memory.
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

// MismatchError says which elements of memory differ from the pattern.
type MismatchError struct{ Report Report }

// shown is how many mismatches the error's text contains.
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
