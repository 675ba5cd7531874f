package verify

import (
	"io"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

// Progress shows a person the progress of the checks: a line for each check that has run and, on a terminal, a line for the running check.
type Progress struct{ display *display.Progress }

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{display: display.NewProgress(w)} }

func (p *Progress) begin(done, total int, kind, name string) {
	if p != nil {
		p.display.Step(done, total, kind+"  "+name)
	}
}

// result prints the result of a check that ran. The summary names those that were skipped.
func (p *Progress) result(r Result) {
	if p != nil && r.Status != Skipped {
		r.print(p.display)
	}
}

func (p *Progress) end() {
	if p != nil {
		p.display.Done()
	}
}
