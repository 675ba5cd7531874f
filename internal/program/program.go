// Package program finds the version of poolbridge that is built into a program.
package program

import (
	"cmp"
	"runtime/debug"
	"strings"
)

const module = "github.com/poolbridge/poolbridge"

// linked is the version that the linker sets, by -ldflags "-X …/internal/program.linked=0.2.0".
var linked string

// Version returns the version of poolbridge in this program. If the linker set a version, Version returns this version. Otherwise it
// returns the version of the module in Go's build information, which exists after `go install`, for example. If the program has neither,
// Version returns "unknown".
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(linked, ofBuild(info), "unknown")
}

// ofBuild returns the module's version in a program's build information, or "" if the information has no version. info may be nil.
func ofBuild(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && strings.HasPrefix(m.Version, "v") {
			return m.Version[1:]
		}
	}
	return ""
}
