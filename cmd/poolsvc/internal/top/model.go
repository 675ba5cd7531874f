package top

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// Model is the state of the screen.
type Model struct {
	ctx      context.Context
	source   *Source
	interval time.Duration

	now, before *snapshot              // before is nil until there are two snapshots
	err         error                  // the error of the last read of the service
	events      []mempool.HistoryEvent // newest last
	paused      bool

	width, height int
	pane          int // index of the selected pane, among the panes that can have a cursor
	row           [panes]int
	order         [panes]int // index of the column that a pane is sorted by
	filter        string
	typing        bool                  // the user is typing the filter
	details       uint64                // session whose details are shown; 0: none
	scroll        int                   // how many rows of the details are above the screen
	event         *mempool.HistoryEvent // event whose details are shown; nil: none
	help          bool
}

// These are the panes that can have a cursor.
const (
	sessionsPane = iota
	channelsPane
	eventsPane // row 0 is the newest event
	panes
)

// maxEvents is the greatest number of events that the screen keeps.
const maxEvents = 200

// New makes the screen for a source. The screen reads a new snapshot from the source after each interval.
func New(ctx context.Context, source *Source, interval time.Duration) *Model {
	return &Model{ctx: ctx, source: source, interval: interval, width: 80, height: 24}
}

// looked is the message with the snapshot that the screen has asked for. due is the message that tells the screen to
// ask again.
type looked struct {
	snapshot snapshot
	err      error
}

type due struct{}

func (m *Model) readService() tea.Cmd {
	ctx, source, of, filtered, limit := m.ctx, m.source, m.details, m.filter != "", max(m.interval, 5*time.Second)
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		now, err := source.read(ctx, of, filtered)
		return looked{now, err}
	}
}

// Init asks the service for the first snapshot.
func (m *Model) Init() tea.Cmd { return m.readService() }

// Update handles a message.
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
		return m, m.readService()
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
	had := len(m.happened())
	if m.before != nil && m.before.epoch != m.now.epoch {
		m.before = nil // the ids in the earlier snapshot are ids of another epoch
		restart := mempool.HistoryEvent{At: m.now.at, Text: "another service answers: it was started again"}
		if len(m.now.events) > 0 {
			restart.At = m.now.events[0].At
		}
		m.events = append(m.events, restart)
	}
	m.events = append(m.events, m.now.events...)
	if m.row[eventsPane] > 0 { // the cursor stays at the same event
		m.row[eventsPane] += len(m.happened()) - had
	}
	m.events = m.events[max(0, len(m.events)-maxEvents):]
}

func (m *Model) press(key tea.KeyPressMsg) tea.Cmd {
	if m.typing {
		m.typeFilter(key)
		return nil
	}
	switch name := key.String(); {
	case name == "q", name == "ctrl+c":
		return tea.Quit
	case m.help:
		m.help = false
		return nil
	}
	switch key.String() {
	case "tab":
		m.details, m.event = 0, nil
		m.pane = (m.pane + 1) % panes
	case "up", "k":
		m.step(-1)
	case "down", "j":
		m.step(+1)
	case "home", "g":
		m.step(-math.MaxInt32)
	case "s":
		if n := len(columns[m.pane]); n > 0 {
			m.order[m.pane] = (m.order[m.pane] + 1) % n
		}
	case "/":
		m.typing = true
	case "space", "p":
		m.paused = !m.paused
	case "?", "h":
		m.help = true
	case "esc":
		if m.details == 0 && m.event == nil {
			m.filter = ""
		}
		m.details, m.event = 0, nil
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

// openDetails shows details of the session or the event under the cursor. If a channel is under the cursor, openDetails shows the session
// of the consumer that has the most frames left to take, or of a producer that waits for any consumer. If details are already open, openDetails
// closes them.
func (m *Model) openDetails() {
	if m.now == nil || m.details != 0 || m.event != nil {
		m.details, m.event = 0, nil
		return
	}
	m.scroll = 0
	switch m.pane {
	case sessionsPane:
		if list := m.sessions(); len(list) > 0 {
			m.details = list[m.cursor(sessionsPane, len(list))].ID
		}
	case channelsPane:
		if list := m.channels(); len(list) > 0 {
			ch := list[m.cursor(channelsPane, len(list))]
			m.details = ch.Slowest
			if i := slices.IndexFunc(m.now.jams, func(j display.Jam) bool { return j.ID == ch.ID && len(j.Members) > 0 }); m.details == 0 && i >= 0 {
				m.details = m.now.jams[i].Members[0].Session
			}
		}
	case eventsPane:
		if list := m.happened(); len(list) > 0 {
			m.event = &list[len(list)-1-m.cursor(eventsPane, len(list))]
		}
	}
}

// step moves the cursor, or the rows of the details, down by a number of screen rows.
func (m *Model) step(by int) {
	if m.details != 0 {
		m.scroll = max(0, m.scroll+by)
		return
	}
	if m.pane == eventsPane { // the newest event is in the lowest row
		by = -by
	}
	m.row[m.pane] += by
	m.cursor(m.pane, m.rows(m.pane))
	if m.event != nil {
		m.event = nil
		m.openDetails()
	}
}

// rows returns the number of rows of a pane.
func (m *Model) rows(pane int) int {
	switch {
	case m.now == nil:
		return 0
	case pane == sessionsPane:
		return len(m.sessions())
	case pane == channelsPane:
		return len(m.channels())
	}
	return len(m.happened())
}

// cursor limits the cursor of a pane to its n rows, and returns the row of the cursor.
func (m *Model) cursor(pane, n int) int {
	m.row[pane] = min(max(0, m.row[pane]), max(0, n-1))
	return m.row[pane]
}

// columns are the columns by which the user can sort each pane. A pane sorts texts and session ids in ascending order, and other values
// in descending order.
var columns = [panes][]string{
	sessionsPane: {"BYTES", "LEASES", "AGE", "SESSION", "PROGRAM"},
	channelsPane: {"FRAMES/S", "USED", "CHANNEL"},
}

// sessions returns the sessions that pass the filter, in the order of the pane, after those that block producers and those that wait for them.
func (m *Model) sessions() []mempool.SessionInfo {
	list := slices.DeleteFunc(slices.Clone(m.now.sessions), func(o mempool.SessionInfo) bool {
		return !m.matches(append(texts(o.Program, o.PID, o.UID, o.ID), m.now.channelsOf[o.ID]...)...)
	})
	parts := display.Parts(m.now.jams)
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
		return cmp.Or(cmp.Compare(parts[b.ID], parts[a.ID]), by, cmp.Compare(a.ID, b.ID))
	})
	return list
}

// channels returns the channels that pass the filter, in the order of the pane, after those that block producers.
func (m *Model) channels() []mempool.ChannelInfo {
	list := slices.DeleteFunc(slices.Clone(m.now.channels), func(ch mempool.ChannelInfo) bool {
		return !m.matches(append([]string{ch.Name, m.now.pool(ch.Pool)}, m.now.membersOf[ch.ID]...)...)
	})
	rates := m.rates()
	slices.SortStableFunc(list, func(a, b mempool.ChannelInfo) int {
		by := 0
		switch columns[channelsPane][m.order[channelsPane]] {
		case "FRAMES/S":
			by = cmp.Compare(rates[b.ID], rates[a.ID])
		case "USED":
			by = cmp.Compare(b.Used, a.Used)
		case "CHANNEL":
			by = cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(cmp.Compare(display.PartOf(b), display.PartOf(a)), by, cmp.Compare(a.ID, b.ID))
	})
	return list
}

// happened returns the events that pass the filter, the newest last.
func (m *Model) happened() []mempool.HistoryEvent {
	return slices.DeleteFunc(slices.Clone(m.events), func(e mempool.HistoryEvent) bool { return !m.matches(e.Text) })
}

// texts returns what the filter finds a session by.
func texts(program string, pid int32, uid uint32, id uint64) []string {
	return []string{program, strconv.Itoa(int(pid)), strconv.Itoa(int(uid)), strconv.FormatUint(id, 10)}
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
