package display

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/term"
)

// These are the styles for the words of results. [Progress] and [Coloured] show colours only where people can see them.
var (
	Good    = lipgloss.NewStyle().Foreground(lipgloss.Green)
	Bad     = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
	Neutral = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
)

// Coloured returns a writer that passes all text on to w. The writer removes the colours if w is not a terminal, or if $NO_COLOR is set.
func Coloured(w io.Writer) io.Writer { return coloured(w, os.Environ()) }

func coloured(w io.Writer, environ []string) *colorprofile.Writer {
	c := colorprofile.NewWriter(w, environ)
	if os.Getenv("NO_COLOR") != "" { // any value counts, see https://no-color.org
		c.Profile = min(c.Profile, colorprofile.ASCII)
	}
	return c
}

// Progress prints lines about the progress of a command. On a terminal, it also shows a progress bar below the lines. A nil *Progress
// shows nothing. Several goroutines may use the same Progress.
type Progress struct {
	w    io.Writer
	live bool // w is a terminal, so Progress can erase a line

	mu  sync.Mutex
	bar string // the text of the bar, which is the last line
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress {
	c := coloured(w, os.Environ())
	f, ok := w.(*os.File)
	return &Progress{w: c, live: ok && term.IsTerminal(f.Fd()) && c.Profile > colorprofile.NoTTY}
}

// eraseLine erases the current line of a terminal.
const eraseLine = "\r\x1b[K"

// Step updates the bar. `done` is the number of finished steps, `total` is the number of all steps, and `what` is the name of the next
// step.
func (p *Progress) Step(done, total int, what string) {
	if p == nil || !p.live {
		return
	}
	const width = 20
	full := width * min(done, total) / max(total, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = fmt.Sprintf("[%-*.*s] %d/%d  %s", width, full, "####################", done, total, what)
	fmt.Fprint(p.w, eraseLine+p.bar)
}

// Done removes the bar.
func (p *Progress) Done() {
	if p == nil || !p.live {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar = ""
	fmt.Fprint(p.w, eraseLine)
}

// Write writes whole lines above the bar.
func (p *Progress) Write(b []byte) (int, error) {
	if p == nil {
		return len(b), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == "" {
		return p.w.Write(b)
	}
	var all bytes.Buffer
	all.WriteString(eraseLine)
	all.Write(b)
	all.WriteString(p.bar)
	if _, err := p.w.Write(all.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}
