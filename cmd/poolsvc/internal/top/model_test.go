package top

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// screen returns a model that has received snapshots, and a function that returns the lines of the model's screen.
func screen(t *testing.T, width, height int, seen ...snapshot) (*Model, func() []string) {
	t.Helper()
	m := New(t.Context(), &Source{Socket: "/run/poolsvc.sock"}, time.Second)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	for _, s := range seen {
		m.Update(looked{snapshot: s})
	}
	return m, func() []string { return strings.Split(ansi.Strip(m.draw()), "\n") }
}

func press(m *Model, keys ...string) {
	for _, key := range keys {
		k := tea.Key{Text: key}
		switch key {
		case "enter":
			k = tea.Key{Code: tea.KeyEnter}
		case "esc":
			k = tea.Key{Code: tea.KeyEscape}
		case "tab":
			k = tea.Key{Code: tea.KeyTab}
		case "down":
			k = tea.Key{Code: tea.KeyDown}
		default:
			k.Code = rune(key[0])
		}
		m.Update(tea.KeyPressMsg(k))
	}
}

func busy() snapshot {
	return snapshot{at: noon,
		stats: mempool.ServiceStats{Sessions: 3, Leases: 4, Buffers: 5, Pools: []mempool.PoolStats{{
			Pool: mempool.PoolInfo{ID: 1, Name: "frames", Kind: mempool.Host, MaxBytes: 1 << 30, Device: mempool.NoDevice}, Reserved: 600 << 20, Leased: 500 << 20,
			Cached: 100 << 20}}},
		sessions: []mempool.SessionInfo{
			{ID: 1, PID: 10, UID: 1000, Program: "loader", Began: noon.Add(-time.Hour), Leases: 1, Bytes: 100 << 20},
			{ID: 2, PID: 11, UID: 1000, Program: "train.py", Began: noon.Add(-time.Minute), Leases: 3, Bytes: 400 << 20},
			{ID: 3, PID: 12, UID: 1001, Program: "evil\x1b[2J", Began: noon},
		},
		channels: []mempool.ChannelInfo{{ChannelIdentity: mempool.ChannelIdentity{ID: 7, ChannelSpec: mempool.ChannelSpec{Name: "camera", Pool: 1, Mode: mempool.Broadcast, Capacity: 8, Full: mempool.Block}},
			Producers: 1, Consumers: 2, Published: 100, Dropped: 5, Used: 8, Waiting: 8, Slowest: 2}},
	}
}

func after(s snapshot, d time.Duration, change func(*snapshot)) snapshot {
	s.at = s.at.Add(d)
	s.sessions = append([]mempool.SessionInfo{}, s.sessions...)
	s.channels = append([]mempool.ChannelInfo{}, s.channels...)
	change(&s)
	return s
}

func lineWith(t *testing.T, lines []string, text string) (int, string) {
	t.Helper()
	for i, line := range lines {
		if strings.Contains(line, text) {
			return i, line
		}
	}
	require.Failf(t, "not on the screen", "%q in\n%s", text, strings.Join(lines, "\n"))
	return 0, ""
}

func TestTheSessionThatHoldsMostComesFirst(t *testing.T) {
	_, draw := screen(t, 80, 24, busy())
	most, line := lineWith(t, draw(), "train.py")
	less, _ := lineWith(t, draw(), "loader")
	assert.Less(t, most, less)
	assert.Contains(t, line, "400MiB")
	assert.Contains(t, line, "80%")
}

func TestAScreenIsNeverLargerThanTheTerminal(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 60}, {50, 14}, {20, 5}, {10, 3}, {1, 1}} {
		m, draw := screen(t, size[0], size[1], busy())
		for range 3 { // the main screen, the details, and the help
			lines := draw()
			assert.LessOrEqual(t, len(lines), size[1], size)
			for _, line := range lines {
				assert.LessOrEqual(t, ansi.StringWidth(line), size[0], "%v: %q", size, line)
			}
			press(m, "enter", "?")
		}
	}
}

func TestFramesASecondAreThoseBetweenTwoLooks(t *testing.T) {
	_, draw := screen(t, 100, 24, busy(), after(busy(), 2*time.Second, func(s *snapshot) { s.channels[0].Published = 300 }))
	_, line := lineWith(t, draw(), "camera")
	assert.Regexp(t, `camera +frames +broadcast +block +100 +300 +5 +8/8 +2 train.py +1/2 +full`, line)
}

func TestTheLastLinesSayWhatHappened(t *testing.T) {
	_, draw := screen(t, 80, 30, busy(), after(busy(), time.Second, func(s *snapshot) {
		at := s.at.Local()
		s.events = []mempool.HistoryEvent{{At: at, Kind: mempool.SessionBegan, Text: "session 4 (evil\x1b[2J, pid 13) began"},
			{At: at, Kind: mempool.ChannelClosed, Text: "channel camera was closed"}}
	}))
	text := strings.Join(draw(), "\n")
	assert.Contains(t, text, "session 4 (evil?[2J, pid 13) began")
	assert.Contains(t, text, "channel camera was closed")
}

func TestAServiceThatWasStartedAgainIsSaidAndNotCompared(t *testing.T) {
	m, draw := screen(t, 80, 24, busy(), after(busy(), time.Second, func(s *snapshot) {
		s.epoch[0] = 1
		s.sessions = nil
		s.events = []mempool.HistoryEvent{{Kind: mempool.PoolMade, At: s.at.Add(-time.Second / 2)}}
	}))
	assert.True(t, slices.IsSortedFunc(m.events, func(a, b mempool.HistoryEvent) int { return a.At.Compare(b.At) }))
	text := strings.Join(draw(), "\n")
	assert.Contains(t, text, "another service answers: it was started again")
	assert.NotContains(t, text, "ended")
}

func TestTheFilterLeavesWhatMatches(t *testing.T) {
	m, draw := screen(t, 80, 24, busy())
	press(m, "/", "T", "r", "a", "i", "n", "enter")
	text := strings.Join(draw(), "\n")
	assert.Contains(t, text, "train.py")
	assert.NotContains(t, text, "loader")
	press(m, "esc")
	assert.Contains(t, strings.Join(draw(), "\n"), "loader")
}

func TestTheFilterReachesMembersByTheirChannelChannelsByTheirMembersAndEvents(t *testing.T) {
	s := busy()
	s.channelsOf = map[uint64][]string{2: {"camera"}}
	s.membersOf = map[uint64][]string{7: texts("train.py", 11, 1000, 2)}
	s.events = []mempool.HistoryEvent{{At: noon, Text: "train.py began"}, {At: noon, Text: "loader began"}}
	for _, filter := range []string{"camera", "train"} {
		m, draw := screen(t, 80, 24, s)
		press(m, append(strings.Split("/"+filter, ""), "enter")...)
		text := strings.Join(draw(), "\n")
		assert.NotContains(t, text, "loader")
		assert.Contains(t, text, "11  1000  train.py")
		assert.Contains(t, text, "camera   frames")
		assert.Equal(t, filter == "train", strings.Contains(text, "train.py began"))
	}
}

func TestTheKeysFitIntoTheLastRow(t *testing.T) {
	m, draw := screen(t, 80, 24, busy())
	for _, keys := range [][]string{{}, {"/", "s", "l", "o", "w", "_", "a", "r", "c", "h", "enter"}, {"p"}, {"enter"}, {"?"}} {
		press(m, keys...)
		assert.NotContains(t, draw()[23], "…")
	}
}

func TestAnyKeyLeavesTheHelpAndTabLeavesDetails(t *testing.T) {
	m, draw := screen(t, 80, 24, busy())
	for _, key := range []string{"tab", "h", "esc"} {
		press(m, "?")
		lineWith(t, draw(), "any key goes back")
		press(m, key)
		lineWith(t, draw(), "CHANNEL")
	}
	press(m, "enter", "tab")
	lineWith(t, draw(), "CHANNEL")
}

func TestDetailsShowTheBuffersOfTheSessionUnderTheCursor(t *testing.T) {
	m, draw := screen(t, 80, 24, busy())
	press(m, "down", "enter")
	assert.EqualValues(t, 1, m.details, "the second by bytes")
	s := busy()
	image := mempool.Tensor{DType: "float32", Shape: []uint64{1024, 1024}}
	s.held = []mempool.BufferInfo{
		{ID: 9, Pool: 1, Bytes: 4 << 20, BlockBytes: 4 << 20, Session: 1, Writer: 1, Tensor: image},
		{ID: 10, Pool: 1, Bytes: 3 << 20, BlockBytes: 4 << 20, Session: 1, Names: 1, Tensor: image},
		{ID: 11, Pool: 1, Bytes: 8 << 20, BlockBytes: 8 << 20, Session: 1, Readers: []uint64{2}, Reads: 1, Tensor: image},
		{ID: 12, Pool: 1, Bytes: 2 << 20, BlockBytes: 2 << 20, Session: 2, Readers: []uint64{1}, Reads: 1, Tensor: image},
		{ID: 13, Pool: 1, Bytes: 1 << 20, BlockBytes: 1 << 20, Session: 1, Writer: 1, InChannel: true, Tensor: image},
	}
	m.Update(looked{snapshot: s})
	var rows []string
	for _, line := range draw() {
		if fields := strings.Fields(strings.ReplaceAll(line, "[1024 1024]", "")); slices.Contains(fields, "float32") {
			rows = append(rows, strings.Join(append(fields[:1], fields[3:]...), " "))
		}
	}
	assert.Equal(t, []string{"9 4MiB 4MiB written 0", "10 3MiB 4MiB published 1", "11 8MiB 8MiB read by others 0", "12 2MiB - read 0", "13 1MiB 1MiB in a channel 0"}, rows)
	lineWith(t, draw(), "100MiB in pools")
	_, line := lineWith(t, draw(), "83MiB")
	assert.Contains(t, line, "rest", "what counts without being listed")
	press(m, "esc")
	lineWith(t, draw(), "CHANNEL")
}

func TestDetailsSayHowToGetTheArraysOfABuffer(t *testing.T) {
	s := busy()
	several := mempool.Tensor{DType: "uint8", Shape: []uint64{4096}, LayoutBytes: 100}
	s.held = []mempool.BufferInfo{{ID: 9, Pool: 1, Session: 2, Names: 1, Tensor: several}}
	m, draw := screen(t, 80, 24, s)
	press(m, "enter")
	_, line := lineWith(t, draw(), "     9  frames")
	assert.Contains(t, line, "several arrays  client.get_dict(NAME)")
}

func TestTheDetailsCanBeReadToTheirLastRow(t *testing.T) {
	s := busy()
	for id := range uint64(50) {
		s.held = append(s.held, mempool.BufferInfo{ID: 900 + id, Pool: 1, Session: 2, Writer: 2})
	}
	m, draw := screen(t, 80, 24, s)
	press(m, "enter")
	lineWith(t, draw(), "rows 1 to 15 of 51")
	lineWith(t, draw(), "esc back")
	for range 60 {
		press(m, "down")
	}
	lineWith(t, draw(), "rows 37 to 51 of 51")
	lineWith(t, draw(), "949")
	lineWith(t, draw(), "rest")
	press(m, "g")
	lineWith(t, draw(), "900")
	press(m, "down", "esc")
	assert.Zero(t, m.row[sessionsPane], "the cursor stays at its session")
}

func TestAFullChannelShowsThatAllItsPlacesAreUsed(t *testing.T) {
	_, draw := screen(t, 100, 24, after(busy(), 0, func(s *snapshot) { s.channels[0].Waiting = 7 })) // the consumer has the 8th frame
	_, line := lineWith(t, draw(), "camera")
	assert.Regexp(t, `8/8 .* full`, line)
}

func TestAQueueThatDropsFramesBecauseNobodyTakesThemIsMarked(t *testing.T) {
	colours := func(untaken bool) bool {
		m, draw := screen(t, 100, 24, after(busy(), 0, func(s *snapshot) {
			ch := &s.channels[0]
			ch.Mode, ch.Full, ch.Used, ch.Consumers, ch.Untaken = mempool.WorkQueue, mempool.DropOldest, uint64(ch.Capacity), 0, untaken
		}))
		draw()
		for _, line := range strings.Split(m.draw(), "\n") {
			if strings.Contains(line, "camera") && strings.Contains(line, "drop-oldest") {
				return line != ansi.Strip(line)
			}
		}
		require.FailNow(t, "the channel is not shown")
		return false
	}
	assert.True(t, colours(true))
	assert.False(t, colours(false), "nobody sends")
}

// jammed is a snapshot in which session 3 blocks session 1 in the second of two channels.
func jammed() snapshot {
	return after(busy(), 0, func(s *snapshot) {
		s.sessions[2].Program = "slow_archive.py"
		s.sessions[0].WaitsFor, s.sessions[0].Since = `slow_archive.py (session 3), which is behind in channel "blocked"`, noon.Add(-46*time.Second)
		ch := s.channels[0]
		ch.ID, ch.Name, ch.Slowest, ch.Waiting, ch.Blocked = 8, "blocked", 3, 7, true
		s.channels = append(s.channels, ch)
		s.jams = []display.Jam{{ChannelInfo: ch, Members: []mempool.MemberInfo{
			{Session: 1, Role: "producer", Program: "loader"}, {Session: 3, Role: "consumer", Program: "slow_archive.py", Since: noon.Add(-46 * time.Second)},
		}}}
	})
}

func TestWhatBlocksComesFirstAndThenWhatWaitsForIt(t *testing.T) {
	m, draw := screen(t, 80, 24, jammed(), after(jammed(), time.Second, func(s *snapshot) { s.channels[0].Published += 100 }))
	var order []string
	for _, line := range draw() {
		if first, _, _ := strings.Cut(strings.TrimSpace(line), " "); slices.Contains([]string{"1", "2", "3", "camera", "blocked"}, first) {
			order = append(order, first)
		}
	}
	assert.Equal(t, []string{"3", "1", "2", "blocked", "camera"}, order)
	_, line := lineWith(t, draw(), "12  1001  slow_archive.py")
	assert.Contains(t, line, "blocks loader for 47s")
	_, line = lineWith(t, draw(), "10  1000  loader")
	assert.Contains(t, line, "slow_archive.py (session 3)…")
	colour := func(text string) string {
		for _, line := range strings.Split(m.draw(), "\n") {
			if strings.Contains(line, text) {
				return line[:strings.Index(line, "m")+1]
			}
		}
		return ""
	}
	press(m, "tab", "tab")
	assert.Equal(t, []string{"\x1b[1;31m", "\x1b[31m", "\x1b[1;31m"}, []string{colour("1001"), colour("10  1000"), colour("blocked  frames")})
}

func TestDetailsSayWhomASessionBlocksAndHowFarItIsBehind(t *testing.T) {
	reason := "7 of 8 frames behind in blocked, and 1 more in hand; blocks loader for 46s"
	m, draw := screen(t, 80, 24, jammed())
	press(m, "enter")
	lineWith(t, draw(), "session 3: slow_archive.py")
	lineWith(t, draw(), reason)
	press(m, "esc", "tab", "enter")
	lineWith(t, draw(), reason)

	nobody := jammed()
	nobody.channels[1].Mode, nobody.channels[1].Slowest = mempool.WorkQueue, 0
	nobody.jams[0].ChannelInfo = nobody.channels[1]
	m, draw = screen(t, 80, 24, nobody)
	m.now.channels[1].Untaken, m.now.jams[0].Untaken = true, true
	press(m, "tab", "enter")
	lineWith(t, draw(), "session 1: loader")
}

func TestRowsThatDoNotFitAreCounted(t *testing.T) {
	_, draw := screen(t, 80, 24, after(busy(), 0, func(s *snapshot) {
		for id := range uint64(30) {
			s.sessions = append(s.sessions, mempool.SessionInfo{ID: 100 + id, Program: "worker"})
		}
	}))
	workers := strings.Count(strings.Join(draw(), "\n"), "worker")
	lineWith(t, draw(), fmt.Sprintf("%d more rows", 30-workers))
}

func TestColumnsThatAreLeftOutGiveTheirRoomToTheOthers(t *testing.T) {
	_, draw := screen(t, 80, 24, jammed())
	_, line := lineWith(t, draw(), "blocked  frames")
	assert.Contains(t, line, "3 slow_archive.py")
}

func TestASlowChannelLeadsToItsSlowestSession(t *testing.T) {
	m, _ := screen(t, 80, 24, busy())
	press(m, "tab", "enter")
	assert.EqualValues(t, 2, m.details)
}

func TestTheColumnThatSortsHasAnArrow(t *testing.T) {
	m, draw := screen(t, 120, 24, busy())
	_, head := lineWith(t, draw(), "PROGRAM")
	assert.Contains(t, head, "BYTES▼")
	press(m, "s", "s", "s")
	_, head = lineWith(t, draw(), "PROGRAM")
	assert.Contains(t, head, "SESSION▲")
	assert.NotContains(t, head, "BYTES▼")
	_, head = lineWith(t, draw(), "SLOWEST")
	assert.Contains(t, head, "FRAMES/S▼")
}

func TestWhatASessionWaitsForIsShownWhereThereIsRoom(t *testing.T) {
	s := busy()
	s.sessions[1].WaitsFor, s.sessions[1].Since = `loader (session 1), which is behind in channel "camera"`, noon.Add(-time.Minute)
	_, draw := screen(t, 160, 24, s)
	_, line := lineWith(t, draw(), "train.py")
	assert.Contains(t, line, `loader (session 1), which is behind in channel "camera" (1m00s)`)
	_, draw = screen(t, 80, 24, s)
	_, line = lineWith(t, draw(), "train.py")
	assert.Contains(t, line, `loader (session 1), `)
	m, draw := screen(t, 60, 24, s)
	_, line = lineWith(t, draw(), "train.py")
	assert.NotContains(t, line, "loader")
	press(m, "enter")
	lineWith(t, draw(), "waits for loader (session 1)")
}

func TestAnEventCanBeReadWhole(t *testing.T) {
	long := func(n uint64, end string) mempool.HistoryEvent {
		return mempool.HistoryEvent{Number: n, At: noon, Kind: mempool.LeaseLong, Text: strings.Repeat("a word ", 20) + end}
	}
	s := busy()
	s.events = []mempool.HistoryEvent{long(1, "of the first"), long(2, "of the second")}
	m, draw := screen(t, 50, 30, s)
	press(m, "tab", "tab", "s", "down", "enter") // events cannot be sorted, and no event is below the newest event
	lineWith(t, draw(), "event 2: lease-long")
	assert.Contains(t, strings.Join(draw(), " "), "of the second")
	press(m, "up")
	lineWith(t, draw(), "event 1: lease-long")
	press(m, "enter")
	lineWith(t, draw(), "of the second")
	lineWith(t, draw(), "of the first")
	more := after(s, time.Second, func(s *snapshot) { s.events = []mempool.HistoryEvent{long(3, "of the third")} })
	m.Update(looked{snapshot: more})
	press(m, "enter")
	assert.Contains(t, strings.Join(draw(), " "), "of the first", "the cursor stays at its event")
	press(m, "esc", "tab", "enter")
	assert.NotZero(t, m.details, "the sessions come after the events")
}

func TestNoProgramNameReachesTheTerminalAsACommand(t *testing.T) {
	m, _ := screen(t, 80, 24, busy())
	assert.NotContains(t, m.draw(), "evil\x1b[2J")
}

func TestAServiceThatDoesNotAnswerIsSaidBelowWhatWasSeenLast(t *testing.T) {
	m, draw := screen(t, 80, 24, busy())
	m.Update(looked{err: errors.New("connection refused")})
	lines := draw()
	assert.Contains(t, lines[len(lines)-1], "no answer: connection refused")
	lineWith(t, lines, "train.py")
	long := "no service is running: nothing listens on /run/user/1000/poolbridge/poolsvc.sock; start it with `poolsvc serve`"
	m.Update(looked{err: errors.New(long)})
	lines = draw()
	assert.Len(t, lines, 24)
	said := strings.Fields(strings.Join(lines[22:], " "))
	assert.Equal(t, "no answer: "+long, strings.Join(said, " "), "it goes on in the next line")
}
