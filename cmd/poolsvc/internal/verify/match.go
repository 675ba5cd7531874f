package verify

import (
	"regexp"
	"strings"
)

// glob returns the regular expression for a pattern in which * matches any text and ? matches one character.
func glob(pattern string) (*regexp.Regexp, error) {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(strings.ReplaceAll(quoted, `\*`, ".*"), `\?`, ".")
	return regexp.Compile("^(?:" + quoted + ")$")
}

func containsFold(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}
