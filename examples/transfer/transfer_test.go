package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestAnArrayGoesFromGoToPython(t *testing.T) {
	python := rig.Python(t)
	for kind, library := range python.Consumers(t) {
		t.Run(string(kind), func(t *testing.T) {
			service := rig.Serve(t)
			t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
			require.NoError(t, transfer(t.Context(), kind))
			out := python.Run(t, "consumer.py", library)
			assert.Contains(t, out, "float32[2, 3]")
			assert.Contains(t, out, "21.0")
			service.Idle(t) // the lease of the consumer has ended
		})
	}
}

// The guide (docs/first-array.md) must contain every line that is between the two marks in a program. Other tests run these programs, so
// they also test the lines in the guide.
func TestTheGuideShowsTheseLines(t *testing.T) {
	guide, err := os.ReadFile("../../docs/first-array.md")
	require.NoError(t, err)
	for _, file := range []string{"main.go", "consumer.py"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, lines, found := strings.Cut(string(text), "guide: begin\n")
		require.True(t, found)
		lines, _, found = strings.Cut(lines, "guide: end")
		require.True(t, found)
		for line := range strings.Lines(lines) {
			if code := strings.TrimSpace(line); code != "" && code != "//" && code != "#" {
				assert.Contains(t, string(guide), code, "of %s", file)
			}
		}
	}
}
