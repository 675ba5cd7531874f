package program

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAProgramThatGoInstalledKnowsItsVersion(t *testing.T) {
	assert.Equal(t, "0.2.0", ofBuild(&debug.BuildInfo{Main: debug.Module{Path: module, Version: "v0.2.0"}}))
}

func TestAProgramThatUsesTheModuleKnowsTheModulesVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Path: "example.org/camera", Version: "v7.0.0"},
		Deps: []*debug.Module{{Path: "example.org/other", Version: "v3.0.0"}, {Path: module, Version: "v0.2.0"}}}
	assert.Equal(t, "0.2.0", ofBuild(info))
}

func TestABuildThatSaysNothingHasNoVersion(t *testing.T) {
	assert.Empty(t, ofBuild(nil))
	assert.Empty(t, ofBuild(&debug.BuildInfo{Main: debug.Module{Path: module, Version: "(devel)"}}))
}

func TestWhatTheProgramWasLinkedWithCounts(t *testing.T) {
	before := linked
	defer func() { linked = before }()
	linked = "0.2.1.dev3+gabc"
	assert.Equal(t, "0.2.1.dev3+gabc", Version())
	linked = ""
	assert.NotEmpty(t, Version())
}
