// Package similar finds names that somebody may have meant.
package similar

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Hint returns the end of an error about a name that does not exist: `; did you mean "weights"?`, with at most three of the known names. If
// no known name is similar, the result is empty.
func Hint(name string, known iter.Seq[string]) string {
	var found []string
	for one := range known {
		if one != name && alike(one, name) {
			found = append(found, strconv.Quote(one))
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	found = slices.Compact(found)
	return "; did you mean " + strings.Join(found[:min(len(found), 3)], " or ") + "?"
}

// alike says whether two names begin and end alike, and differ in the middle by at most two characters, or by those that one name has besides
// the other.
func alike(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	least, most, same := min(len(a), len(b)), max(len(a), len(b)), 0
	for same < least && a[same] == b[same] {
		same++
	}
	for begin := same; same < least && a[len(a)-1-(same-begin)] == b[len(b)-1-(same-begin)]; {
		same++
	}
	return 2*same >= most && (most-same <= 2 || same == least)
}
