package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// Progress shows a person the progress of the checks: a line for each result and, on a terminal, a line for the running check.
type Progress struct {
	display *display.Progress
	lacking []string // kinds of memory that this machine lacks

	mu   sync.Mutex
	said string // why the last skipped check was skipped
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{display: display.NewProgress(w)} }

// lack prints which kinds of memory this machine lacks, and why. It prints one line for each reason. After that, Progress prints no lines
// for the checks of these kinds.
func (p *Progress) lack(unavailable map[mempool.Kind]error) {
	if p == nil {
		return
	}
	kinds := make(map[string][]string)
	var reasons []string
	for _, kind := range mempool.Kinds() {
		if err := unavailable[kind]; err != nil {
			why := err.Error()
			if !slices.Contains(reasons, why) {
				reasons = append(reasons, why)
			}
			kinds[why] = append(kinds[why], string(kind))
			p.lacking = append(p.lacking, string(kind))
		}
	}
	for _, why := range reasons {
		fmt.Fprintf(p.display, "%s  %s: %s\n", styles[Skipped].Render(string(Skipped)), strings.Join(kinds[why], ", "), why)
	}
}

func (p *Progress) begin(done, total int, kind, name string) {
	if p != nil {
		p.display.Step(done, total, kind+"  "+name)
	}
}

func (p *Progress) result(r Result) {
	if p == nil || r.Status == Skipped && slices.Contains(p.lacking, r.Kind) {
		return
	}
	// If several checks are skipped for the same reason, Progress prints the reason only once.
	why := r.Kind + r.Reason
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Status == Skipped && why == p.said {
		return
	}
	p.said = why
	r.print(p.display)
}

func (p *Progress) end() {
	if p != nil {
		p.display.Done()
	}
}
