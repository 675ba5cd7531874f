package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
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

func TestOnlyAChannelWhoseProducersWaitBlocks(t *testing.T) {
	full := func(change func(*mempool.ChannelInfo)) bool {
		ch := mempool.ChannelInfo{ChannelIdentity: mempool.ChannelIdentity{ChannelSpec: mempool.ChannelSpec{Capacity: 4, Full: mempool.Block}}, Used: 4, Producers: 1}
		change(&ch)
		return ch.Blocks()
	}
	assert.True(t, full(func(*mempool.ChannelInfo) {}))
	assert.False(t, full(func(ch *mempool.ChannelInfo) { ch.Full = mempool.DropOldest }))
	assert.False(t, full(func(ch *mempool.ChannelInfo) { ch.Used = 3 }))
	assert.False(t, full(func(ch *mempool.ChannelInfo) { ch.Producers = 0 }))
	assert.False(t, full(func(ch *mempool.ChannelInfo) { ch.Closed = true }))
}
