package config

import (
	"fmt"
	"slices"
	"strings"
)

// noSuchKey says that there is no key `name`. It names the nearest of the keys `known`, or all of them if none is near. In the text, `prefix`
// stands before each key.
func noSuchKey(name string, known []string, prefix string) string {
	if meant := nearest(name, known); meant != "" {
		return fmt.Sprintf("there is no such key: did you mean %s%s?", prefix, meant)
	}
	return fmt.Sprintf("there is no such key: expected one of %s%s", prefix, strings.Join(known, ", "+prefix))
}

// nearest returns the key that a user probably meant by `name`, or "".
func nearest(name string, known []string) string {
	key := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
	if distance(name, key) > max(1, len(name)/3) {
		return ""
	}
	return key
}

// distance counts the edits that make b of a: a byte is added, removed or changed, or two neighbours change places.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
		for j := range rows[i] {
			switch {
			case i == 0:
				rows[i][j] = j
			case j > 0:
				changed := 1
				if a[i-1] == b[j-1] {
					changed = 0
				}
				rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+changed)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
				}
			}
		}
	}
	return rows[len(a)][len(b)]
}
