package top

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/poolbridge/poolbridge/mempool"
)

// Model is the state of the screen.
type Model struct {
	ctx      context.Context
	source   *Source
	interval time.Duration

	now, before *snapshot              // before is nil until there are two
	err         error                  // of the last look
	events      []mempool.HistoryEvent // newest last
	paused      bool

	width, height int
	pane          int // of the panes that a cursor can be in
	row           [panes]int
	order         [panes]int // index of the column that a pane is sorted by
	filter        string
	typing        bool // the filter
	details       uint64
	help          bool
}

// The panes that a cursor can be in.
const (
	sessionsPane = iota
	channelsPane
	panes
)

// maxEvents is how many events the screen remembers.
const maxEvents = 200

// New makes the screen of a source, which is asked again after each interval.
func New(ctx context.Context, source *Source, interval time.Duration) *Model {
	return &Model{ctx: ctx, source: source, interval: interval, width: 80, height: 24}
}

// looked is what came of a look at the service; the next one is due.
type looked struct {
	snapshot snapshot
	err      error
}

type due struct{}

func (m *Model) look() tea.Cmd {
	ctx, source, of, limit := m.ctx, m.source, m.details, max(m.interval, 5*time.Second)
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		now, err := source.read(ctx, of)
		return looked{now, err}
	}
}

// Init asks the service for the first time.
func (m *Model) Init() tea.Cmd { return m.look() }

// Update takes in what happened.
func (m *Model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = message.Width, message.Height
	case looked:
		m.took(message)
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return due{} })
	case due:
		if m.paused {
			return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return due{} })
		}
		return m, m.look()
	case tea.KeyPressMsg:
		return m, m.press(message)
	}
	return m, nil
}

func (m *Model) took(l looked) {
	m.err = l.err
	if l.err != nil {
		return
	}
	m.before, m.now = m.now, &l.snapshot
	if m.before != nil && m.before.epoch != m.now.epoch {
		m.before = nil // ids mean something else now
		m.events = append(m.events, mempool.HistoryEvent{At: m.now.at, Text: "another service answers: it was started again"})
	}
	m.events = append(m.events, m.now.events...)
	m.events = m.events[max(0, len(m.events)-maxEvents):]
}

func (m *Model) press(key tea.KeyPressMsg) tea.Cmd {
	if m.typing {
		m.typeFilter(key)
		return nil
	}
	switch key.String() {
	case "q", "ctrl+c":
		return tea.Quit
	case "tab":
		m.pane = (m.pane + 1) % panes
	case "up", "k":
		m.row[m.pane]--
	case "down", "j":
		m.row[m.pane]++
	case "home", "g":
		m.row[m.pane] = 0
	case "s":
		m.order[m.pane] = (m.order[m.pane] + 1) % len(columns[m.pane])
	case "/":
		m.typing = true
	case "space", "p":
		m.paused = !m.paused
	case "?", "h":
		m.help = !m.help
	case "esc":
		m.details, m.filter, m.help = 0, "", false
	case "enter":
		m.openDetails()
	}
	return nil
}

func (m *Model) typeFilter(key tea.KeyPressMsg) {
	switch key.String() {
	case "enter":
		m.typing = false
	case "esc", "ctrl+c":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		m.filter += key.Text
	}
}

// openDetails shows the session under the cursor; of a channel, the one that is furthest behind.
func (m *Model) openDetails() {
	if m.now == nil || m.details != 0 {
		m.details = 0
		return
	}
	switch m.pane {
	case sessionsPane:
		if list := m.sessions(); len(list) > 0 {
			m.details = list[m.cursor(sessionsPane, len(list))].ID
		}
	case channelsPane:
		if list := m.channels(); len(list) > 0 {
			m.details = list[m.cursor(channelsPane, len(list))].Slowest
		}
	}
}

// cursor is the row of a pane with n rows that the cursor is in.
func (m *Model) cursor(pane, n int) int {
	m.row[pane] = min(max(0, m.row[pane]), max(0, n-1))
	return m.row[pane]
}

// columns are what panes can be sorted by.
var columns = [panes][]string{
	sessionsPane: {"BYTES", "LEASES", "AGE", "ID", "PROGRAM"},
	channelsPane: {"FRAMES/S", "WAITING", "NAME"},
}

// sessions are those that the filter lets through, in order.
func (m *Model) sessions() []mempool.SessionInfo {
	list := slices.DeleteFunc(slices.Clone(m.now.sessions), func(o mempool.SessionInfo) bool {
		return !m.matches(o.Program, strconv.Itoa(int(o.PID)), strconv.Itoa(int(o.UID)), strconv.FormatUint(o.ID, 10))
	})
	slices.SortStableFunc(list, func(a, b mempool.SessionInfo) int {
		by := 0
		switch columns[sessionsPane][m.order[sessionsPane]] {
		case "BYTES":
			by = cmp.Compare(b.Bytes, a.Bytes)
		case "LEASES":
			by = cmp.Compare(b.Leases, a.Leases)
		case "AGE":
			by = a.Began.Compare(b.Began)
		case "PROGRAM":
			by = cmp.Compare(a.Program, b.Program)
		}
		return cmp.Or(by, cmp.Compare(a.ID, b.ID))
	})
	return list
}

// channels are those that the filter lets through, in order.
func (m *Model) channels() []mempool.ChannelStatus {
	list := slices.DeleteFunc(slices.Clone(m.now.channels), func(ch mempool.ChannelStatus) bool {
		return !m.matches(ch.Name, m.now.pool(ch.Pool))
	})
	rates := m.rates()
	slices.SortStableFunc(list, func(a, b mempool.ChannelStatus) int {
		by := 0
		switch columns[channelsPane][m.order[channelsPane]] {
		case "FRAMES/S":
			by = cmp.Compare(rates[b.ID], rates[a.ID])
		case "WAITING":
			by = cmp.Compare(b.Waiting, a.Waiting)
		case "NAME":
			by = cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(by, cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (m *Model) matches(texts ...string) bool {
	return m.filter == "" || slices.ContainsFunc(texts, func(text string) bool {
		return strings.Contains(strings.ToLower(text), strings.ToLower(m.filter))
	})
}

func (m *Model) rates() map[uint64]float64 {
	if m.before == nil {
		return nil
	}
	return m.now.rates(m.before)
}
