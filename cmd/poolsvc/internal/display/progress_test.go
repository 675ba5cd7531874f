package display

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func onTerminal(b *bytes.Buffer) *Progress { return &Progress{w: b, live: true} }

func TestLinesStandAboveTheBar(t *testing.T) {
	var b bytes.Buffer
	p := onTerminal(&b)
	p.Step(1, 4, "host  transfer")
	assert.Equal(t, eraseLine+"[#####               ] 1/4  host  transfer", b.String())
	b.Reset()
	fmt.Fprintln(p, "a result")
	assert.Equal(t, eraseLine+"a result\n[#####               ] 1/4  host  transfer", b.String())
	b.Reset()
	p.Done()
	assert.Equal(t, eraseLine, b.String())
	b.Reset()
	fmt.Fprintln(p, "after it")
	assert.Equal(t, "after it\n", b.String(), "no bar any more")
}

func TestWhatIsNoTerminalGetsLinesAlone(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b)
	p.Step(1, 4, "host")
	fmt.Fprintln(p, Good.Render("passed"), "x")
	p.Done()
	assert.Equal(t, "passed x\n", b.String())
}

func TestNobodyIsTold(t *testing.T) {
	var p *Progress
	p.Step(1, 2, "x")
	fmt.Fprintln(p, "x")
	p.Done()
}

func TestColoursAreLeftOutWhereNobodyWantsThem(t *testing.T) {
	const forced = "CLICOLOR_FORCE=1"
	for name, c := range map[string]struct {
		environ []string
		set     string
		colour  bool
	}{
		"forced":       {[]string{"TERM=xterm-256color", forced}, "", true},
		"no terminal":  {[]string{"TERM=xterm-256color"}, "", false},
		"NO_COLOR":     {[]string{"TERM=xterm-256color", forced}, "1", false},
		"NO_COLOR=yes": {[]string{"TERM=xterm-256color", forced}, "yes", false},
	} {
		t.Setenv("NO_COLOR", c.set)
		var b bytes.Buffer
		fmt.Fprint(coloured(&b, c.environ), Good.Render("passed"))
		assert.Equal(t, c.colour, strings.Contains(b.String(), "\x1b[32m"), "%s: %q", name, b.String())
		assert.Contains(t, b.String(), "passed")
	}
}
