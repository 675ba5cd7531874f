// Package similar finds names that somebody may have meant.
package similar

import (
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Names returns those of the known names that are similar to a name, in order, at most three.
func Names(name string, known iter.Seq[string]) (found []string) {
	for one := range known {
		if one != name && alike(one, name) {
			found = append(found, one)
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	return found[:min(len(found), 3)]
}

// Hint returns the end of an error about a name that does not exist: `; did you mean "weights"?`. If no known name is similar, it is empty.
func Hint(name string, known iter.Seq[string]) string {
	text, before := "", "; did you mean "
	for _, one := range Names(name, known) {
		text, before = text+before+strconv.Quote(one), " or "
	}
	if text != "" {
		text += "?"
	}
	return text
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
	return 3*same >= most && (most-same <= 2 || same == least)
}
