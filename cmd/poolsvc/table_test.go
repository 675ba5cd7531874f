package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

func TestARowThatBlocksOthersIsInColourWhereSomebodySeesIt(t *testing.T) {
	marks := table{head: "CHANNEL\tSTATE"}
	marks.add(false, "a\topen")
	marks.add(true, "camera\x1b[2J\tfull")
	var seen, piped bytes.Buffer
	require.NoError(t, marks.print(&seen))
	lines := strings.Split(seen.String(), "\n")
	assert.Equal(t, "a           open", lines[1])
	assert.Equal(t, "camera?[2J  full", ansi.Strip(lines[2]), "no text of a client reaches the terminal as a command")
	assert.Equal(t, display.Bad.Render("camera?[2J  full"), lines[2])
	assert.NotEqual(t, ansi.Strip(lines[2]), lines[2])
	require.NoError(t, marks.print(display.Coloured(&piped)))
	assert.Equal(t, ansi.Strip(seen.String()), piped.String())
}

func TestACommandLineHasNoFolderOfItsProgramAndATitleStaysWhole(t *testing.T) {
	for file, shown := range map[string]string{
		"/usr/bin/python3\x00-m\x00camera\x00":           "python3 -m camera",
		"./camera\x00":                                   "./camera",
		"dask worker [tcp://127.0.0.1:8787]\x00\x00\x00": "dask worker [tcp://127.0.0.1:8787]",
		"\x00\x00": "",
	} {
		assert.Equal(t, shown, commandLine([]byte(file)))
	}
}
