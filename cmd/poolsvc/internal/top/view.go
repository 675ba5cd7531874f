package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
)

var (
	bold     = lipgloss.NewStyle().Bold(true)
	faint    = lipgloss.NewStyle().Faint(true)
	selected = lipgloss.NewStyle().Reverse(true)
	trouble  = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
	warning  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	full     = lipgloss.NewStyle().Foreground(lipgloss.Green)
)

// View draws the screen.
func (m *Model) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "poolsvc top"
	return v
}

// draw returns the lines of the screen. It returns at most as many lines as the screen has rows.
func (m *Model) draw() string {
	lines := []string{m.title()}
	switch {
	case m.help:
		lines = append(lines, strings.Split(helpText, "\n")...)
	case m.now == nil && m.err == nil:
		lines = append(lines, "", "asking the service …")
	case m.now == nil:
	case m.event != nil:
		lines = append(lines, m.drawEvent()...)
	case m.details != 0:
		lines = append(lines, m.drawDetails()...)
	default:
		lines = append(lines, m.drawAll()...)
	}
	foot := strings.Split(m.foot(), "\n")
	room := max(0, m.height-len(foot))
	lines = lines[:min(len(lines), room)]
	for len(lines) < room {
		lines = append(lines, "")
	}
	lines = append(lines, foot...)
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	return strings.Join(lines[:min(len(lines), m.height)], "\n")
}

func (m *Model) title() string {
	left := "poolsvc top  " + m.source.Socket
	if m.now == nil {
		return bold.Render(fit(left, m.width))
	}
	st := m.now.stats
	right := m.now.at.Format(time.TimeOnly)
	if m.err != nil {
		right = "no answer since " + right
	}
	right = fmt.Sprintf("%s  %s  %s  %s", count.Of(len(m.now.sessions), "session"), count.Of(st.Leases, "lease"), count.Of(st.Buffers, "buffer"), right)
	space := m.width - len(right) - 2
	if space < 4 {
		return bold.Render(fit(right, m.width))
	}
	left = fit(left, space)
	return bold.Render(left + strings.Repeat(" ", space-ansi.StringWidth(left)) + "  " + right)
}

func (m *Model) foot() string {
	switch {
	case m.err != nil:
		return trouble.Render(ansi.Wrap("no answer: "+strings.ReplaceAll(m.err.Error(), "\n", " "), m.width, ""))
	case m.typing:
		return fit("filter: "+m.filter+"█  (enter: keep, esc: clear)", m.width)
	case m.help:
		return faint.Render(fit("any key goes back  q quit", m.width))
	}
	keys := "q quit  tab pane  ↑↓ row  enter details  s sort  / filter  p pause  ? help"
	switch {
	case m.details != 0 || m.event != nil:
		keys = "q quit  esc back  ↑↓ row  p pause  ? help"
	case m.filter != "" || m.paused: // few keys, as 80 columns have no room for more
		keys = "q quit  tab pane  ? help"
	}
	if m.filter != "" {
		keys = "filter " + strconv.Quote(m.filter) + " (esc clears)  " + keys
	}
	if m.paused {
		keys = "PAUSED (p goes on)  " + keys
	}
	return faint.Render(fit(keys, m.width))
}

const helpText = `
  Pools     RESERVED is taken from the machine or the GPU: BUSY is in use,
            CACHED is free for use, HELD is on its way back. The bar shows
            BUSY as #, the rest of RESERVED as -, of MAX.
  Sessions  BYTES count for the session in all pools; SHARE is its part of
            what counts for all. enter shows the buffers of a session: COUNTS
            sums to its BYTES; what is only published has no writer or reader.
            A narrow screen has fewer columns. Sessions that block producers
            come first, in bold red; then producers that wait, in red.
  Channels  FRAMES/S since the last look. USED of the channel's places have
            frames: of a broadcast, those that session SLOWEST has to take or,
            if producers wait for it, to give back; of a queue, those that
            wait for a consumer. DROPPED frames were missed by consumers.
            STATE is full where the next frame waits, fails, or drops another.
            P/C counts producers and consumers. enter shows the slowest, and
            whom it blocks. Channels that block producers come first, in red.
  Events    What happened to the service, the newest last: as poolsvc events.

  q quit             tab other table    up, down row     enter details, back
  s sort by the next column (▼ or ▲)    / filter by program, pid, user, channel
  p pause            esc clear filter   ? this help`

// drawAll divides the rows among the panes: first pools get a few rows, then sessions and channels get what they need, and events get the
// rest.
func (m *Model) drawAll() []string {
	sessions, channels := m.drawSessions(), m.drawChannels()
	rest := m.height - 2 - 3 // without the title, the foot, and the 3 blank lines between the panes
	pools := counted(m.drawPools(), 0, max(2, rest/4))
	rest -= len(pools)
	forEvents := max(2, rest/5)
	rest -= forEvents
	forChannels := min(len(channels), max(rest/2, rest-len(sessions)))
	forSessions := min(len(sessions), rest-forChannels)
	forEvents += rest - forChannels - forSessions
	lines := append(slices.Clone(pools), "")
	lines = append(lines, counted(sessions, m.row[sessionsPane], forSessions)...)
	lines = append(lines, "")
	lines = append(lines, counted(channels, m.row[channelsPane], forChannels)...)
	lines = append(lines, "")
	events, cursor := m.drawEvents()
	return append(lines, window(events, cursor, forEvents)...)
}

// window returns the head of a table and as many rows as fit, including the row with the cursor.
func window(lines []string, cursor, most int) []string {
	if len(lines) <= most || most <= 1 {
		return lines[:min(len(lines), max(most, 0))]
	}
	first := 1 + min(max(0, cursor-most+2), len(lines)-most)
	return slices.Concat(lines[:1], lines[first:first+most-1])
}

// counted returns a window, whose last line says how many rows do not fit.
func counted(lines []string, cursor, most int) []string {
	if len(lines) <= most || most <= 2 {
		return window(lines, cursor, most)
	}
	return append(window(lines, cursor, most-1), faint.Render(count.Of(len(lines)-most+1, "more row")))
}

func (m *Model) drawPools() []string {
	rows := [][]string{{"POOL", "KIND", "GPU", "MAX", "RESERVED", "BUSY", "CACHED", "HELD"}}
	for _, p := range m.now.stats.Pools {
		gpu := "-"
		if p.Pool.Device != mempool.NoDevice {
			gpu = strconv.Itoa(p.Pool.Device.Ordinal)
		}
		rows = append(rows, []string{display.Printable(p.Pool.Name), string(p.Pool.Kind), gpu, display.Size(p.Pool.MaxBytes), display.Size(p.Reserved), display.Size(p.Leased),
			display.Size(p.Cached), display.Size(p.Held)})
	}
	lines := table(rows, "lLRrRrRR", m.width)
	for i, p := range m.now.stats.Pools {
		space := m.width - ansi.StringWidth(lines[i+1]) - 1
		if space >= 8 {
			lines[i+1] += " " + bar(p, min(space, 30))
		}
	}
	lines[0] = bold.Render(lines[0])
	return lines
}

// bar draws a bar for a pool, with its used part and its reserved part.
func bar(p mempool.PoolStats, width int) string {
	if p.Pool.MaxBytes == 0 || width < 3 {
		return ""
	}
	cells := width - 2
	part := func(n uint64) int { return min(cells, int(float64(n)/float64(p.Pool.MaxBytes)*float64(cells)+0.5)) }
	busy, reserved := part(p.Leased), part(p.Reserved)
	style := full
	if p.Leased*10 >= p.Pool.MaxBytes*9 {
		style = warning
	}
	return "[" + style.Render(strings.Repeat("#", busy)) + strings.Repeat("-", max(0, reserved-busy)) + strings.Repeat(" ", cells-max(reserved, busy)) + "]"
}

func (m *Model) drawSessions() []string {
	list := m.sessions()
	total := uint64(0)
	for _, o := range m.now.sessions {
		total += o.Bytes
	}
	rows := [][]string{m.head(sessionsPane, "SESSION", "PID", "USER", "PROGRAM", "AGE", "LEASES", "BYTES", "SHARE", "WAITS FOR")}
	for _, o := range list {
		share := "-"
		if total > 0 {
			share = fmt.Sprintf("%.0f%%", 100*float64(o.Bytes)/float64(total))
		}
		rows = append(rows, []string{strconv.FormatUint(o.ID, 10), strconv.Itoa(int(o.PID)), strconv.Itoa(int(o.UID)), display.Printable(o.Program),
			display.Age(m.now.at.Sub(o.Began)), strconv.Itoa(o.Leases), display.Size(o.Bytes), share, display.Doing(o, m.now.jams, m.now.at)})
	}
	parts := display.Parts(m.now.jams)
	lines := table(rows, "rrRlRRrRW", m.width)
	for i, o := range list {
		if part := parts[o.ID]; part > display.NoPart {
			lines[i+1] = trouble.Bold(part == display.Blocking).Render(lines[i+1])
		}
	}
	return m.mark(sessionsPane, rows, lines)
}

func (m *Model) drawChannels() []string {
	rows := [][]string{m.head(channelsPane, "CHANNEL", "POOL", "MODE", "FULL", "FRAMES/S", "FRAMES", "DROPPED", "USED", "SLOWEST", "P/C", "STATE")}
	rates := m.rates()
	list := m.channels()
	for _, ch := range list {
		rate, slowest := "-", "-"
		if r, ok := rates[ch.ID]; ok {
			rate = strconv.FormatFloat(r, 'f', 0, 64)
		}
		if ch.Slowest != 0 {
			slowest = m.now.who(ch.Slowest)
		}
		rows = append(rows, []string{display.Printable(ch.Name), m.now.pool(ch.Pool), string(ch.Mode), string(ch.Full), rate, strconv.FormatUint(ch.Published, 10),
			strconv.FormatUint(ch.Dropped, 10), fmt.Sprintf("%d/%d", ch.Used, ch.Capacity), slowest, fmt.Sprintf("%d/%d", ch.Producers, ch.Consumers), display.State(ch)})
	}
	lines := table(rows, "lLLLrRrrlRl", m.width)
	for i, ch := range list {
		if display.PartOf(ch) > display.NoPart {
			lines[i+1] = trouble.Render(lines[i+1])
		}
	}
	return m.mark(channelsPane, rows, lines)
}

// head returns the heads of the columns of a pane. An arrow marks the column by which the pane is sorted.
func (m *Model) head(pane int, names ...string) []string {
	by := columns[pane][m.order[pane]]
	arrow := "▼"
	if slices.Contains([]string{"SESSION", "PROGRAM", "CHANNEL"}, by) {
		arrow = "▲"
	}
	names[slices.Index(names, by)] += arrow
	return names
}

// mark marks the row that has the cursor of the pane.
func (m *Model) mark(pane int, rows [][]string, lines []string) []string {
	lines[0] = bold.Render(lines[0])
	if n := len(rows) - 1; m.pane == pane && n > 0 {
		at := m.cursor(pane, n) + 1
		style, text := selected, ansi.Strip(lines[at])
		if text != lines[at] {
			style = style.Foreground(lipgloss.Red)
		}
		lines[at] = style.Render(text)
	}
	return lines
}

// drawEvents draws the events in whole sentences, after a head. It also returns the last row of the event under the cursor.
func (m *Model) drawEvents() (lines []string, cursor int) {
	lines = []string{bold.Render("EVENTS")}
	list := m.happened()
	at := len(list) - 1 - m.cursor(eventsPane, len(list))
	for i, e := range list {
		style := lipgloss.NewStyle()
		switch {
		case m.pane == eventsPane && i == at:
			style = selected
		case e.Kind.Trouble() || e.Ending == mempool.SessionLost:
			style = warning
		}
		lead := e.At.Format(time.TimeOnly) + "  "
		for line := range strings.SplitSeq(ansi.Wrap(display.Happened(e), max(m.width-len(lead), 1), ""), "\n") {
			lines = append(lines, style.Render(lead+line))
			lead = strings.Repeat(" ", len(lead))
		}
		if i == at {
			cursor = len(lines) - 2
		}
	}
	if len(m.events) == 0 {
		lines = append(lines, faint.Render("nothing has happened"))
	}
	return lines, cursor
}

// drawEvent draws all details of an event.
func (m *Model) drawEvent() []string {
	e := m.event
	head := e.At.Format(time.DateTime)
	if e.Kind != "" {
		head = fmt.Sprintf("event %d: %s  %s", e.Number, e.Kind, head)
	}
	lines := []string{"", bold.Render(fit(head, m.width))}
	return append(lines, strings.Split(ansi.Wrap(display.Happened(*e), max(m.width, 1), ""), "\n")...)
}

func (m *Model) drawDetails() []string {
	at := slices.IndexFunc(m.now.sessions, func(o mempool.SessionInfo) bool { return o.ID == m.details })
	if at < 0 {
		return []string{"", fmt.Sprintf("session %d has ended", m.details), faint.Render("esc goes back")}
	}
	o := m.now.sessions[at]
	lines := []string{"", bold.Render(fit(fmt.Sprintf("session %d: %s", o.ID, display.Printable(o.Program)), m.width)),
		fmt.Sprintf("pid %d, user %d, began %s (%s ago)", o.PID, o.UID, o.Began.Format(time.DateTime), display.Age(m.now.at.Sub(o.Began))),
		fmt.Sprintf("%s, %s in pools, %s mapped, member of channels: %d", count.Of(o.Leases, "lease"), display.Size(o.Bytes), count.Of(o.Blocks, "block"), o.Members)}
	if o.WaitsFor != "" {
		lines = append(lines, "waits for "+display.Waits(o.WaitsFor, m.now.at.Sub(o.Since)))
	}
	for _, j := range m.now.jams {
		if j.Slowest == o.ID {
			lines = append(lines, trouble.Render(j.Behind()+"; "+j.Harm(m.now.at)))
		}
	}
	rows := [][]string{{"BUFFER", "POOL", "DTYPE", "SHAPE", "BYTES", "COUNTS", "USE", "NAMES"}}
	rest := o.Bytes // what counts for the session, without the buffers that are listed
	for _, b := range m.now.held {
		counts := "-"
		if b.Session == o.ID {
			counts = display.Size(b.BlockBytes)
			rest -= min(rest, b.BlockBytes)
		}
		dtype, shape, _ := strings.Cut(display.Content(b.Tensor, "\t"), "\t")
		rows = append(rows, []string{strconv.FormatUint(b.ID, 10), m.now.pool(b.Pool), dtype, shape, display.Size(b.Bytes), counts, useOf(b, o.ID),
			strconv.Itoa(b.Names)})
	}
	if rest > 0 {
		rows = append(rows, []string{"rest", "", "", "", "", display.Size(rest), "", ""})
	}
	lines = append(lines, "")
	buffers := table(rows, "rllWRrlR", m.width)
	space := m.height - 2 - len(lines) // without the title and the foot
	if len(buffers) <= space {
		return append(lines, buffers...)
	}
	space = min(max(1, space-2), len(rows)-1) // without the head and the last line
	m.scroll = min(m.scroll, len(rows)-1-space)
	lines = append(append(lines, buffers[0]), buffers[1+m.scroll:1+m.scroll+space]...)
	return append(lines, faint.Render(fmt.Sprintf("rows %d to %d of %d: ↑↓ shows the others", m.scroll+1, m.scroll+space, len(rows)-1)))
}

// table aligns columns. The string `align` has one letter for each column: l, L and W align to the left, r and R align to the right. If the
// rows are wider than `width`, table first makes columns of text narrower. If this is not enough, table removes columns with the letters L
// and R, and begins with the rightmost of these columns. A column with the letter l keeps 18 cells, because it has names, and one with the
// letter W keeps 24, because its text says nothing in fewer; on a narrow screen, W is L.
func table(rows [][]string, align string, width int) []string {
	if width < 80 {
		align = strings.ReplaceAll(align, "W", "L")
	}
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	natural := slices.Clone(widths)
	for total(widths) > width && narrow(widths, natural, align) {
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		var cells []string
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			cell = ansi.Truncate(cell, widths[i], "…")
			pad := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if align[i] == 'r' || align[i] == 'R' {
				cells = append(cells, pad+cell)
			} else {
				cells = append(cells, cell+pad)
			}
		}
		lines[n] = fit(strings.Join(cells, "  "), width)
	}
	return lines
}

// narrow makes the widest column of text narrower by one cell, or else drops a column, which leaves the others room to be as wide as they were. It
// returns false if it can do neither.
func narrow(widths, natural []int, align string) bool {
	widest, last := -1, -1
	for i, w := range widths {
		least := map[byte]int{'l': 18, 'L': 11, 'W': 24}[align[i]]
		if least > 0 && w > least && (widest < 0 || w > widths[widest]) {
			widest = i
		}
		if w > 0 && (align[i] == 'L' || align[i] == 'R') {
			last = i
		}
	}
	switch {
	case widest >= 0:
		widths[widest]--
	case last >= 0:
		natural[last] = 0
		copy(widths, natural)
	default:
		return false
	}
	return true
}

func total(widths []int) int {
	n := -2
	for _, w := range widths {
		if w > 0 {
			n += w + 2
		}
	}
	return n
}

// fit cuts a text to a width.
func fit(text string, width int) string {
	text = strings.ReplaceAll(text, "\n", " ")
	return ansi.Truncate(text, max(width, 0), "…")
}
