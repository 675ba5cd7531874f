// Package program knows which version of poolbridge a program is of.
package program

import (
	"cmp"
	"runtime/debug"
	"strings"
)

const module = "github.com/poolbridge/poolbridge"

// linked is set when the program is linked, by -ldflags "-X …/internal/program.linked=0.2.0".
var linked string

// Version is the version of poolbridge in this program: what it was linked with, or else what Go knows of the module, as
// after `go install`. It is "unknown" where neither says.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(linked, ofBuild(info), "unknown")
}

// ofBuild is the module's version in a program's build information, which may be nil.
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
