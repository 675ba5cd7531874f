package config

import (
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/internal/similar"
)

// noSuchKey returns the text of the error that there is no key `name`; the caller puts the name before it. The text has similar keys of
// `known`, or all of them if none is similar, each after `prefix`. The result `meant` has the similar keys without `prefix`.
func noSuchKey(name string, known []string, prefix string) (text string, meant []string) {
	if meant = similar.Names(name, slices.Values(known)); len(meant) > 0 {
		return "there is no such key: did you mean " + prefix + strings.Join(meant, " or "+prefix) + "?", meant
	}
	return "there is no such key: expected one of " + prefix + strings.Join(known, ", "+prefix), nil
}
