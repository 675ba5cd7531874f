package verify

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Progress tells a person how far the checks are: a line for each result, and on a terminal one for what is being done.
type Progress struct {
	w        io.Writer
	terminal bool
	said     string // why the last check was skipped
}

// NewProgress writes to w.
func NewProgress(w io.Writer) *Progress {
	p := &Progress{w: w}
	if f, ok := w.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.terminal = err == nil
	}
	return p
}

// eraseLine is how a terminal's line is taken back.
const eraseLine = "\r\x1b[K"

func (p *Progress) begin(done, total int, kind, name string) {
	if p == nil || !p.terminal {
		return
	}
	const width = 20
	bar := width * done / max(total, 1)
	fmt.Fprintf(p.w, eraseLine+"[%-*.*s] %d/%d  %s  %s", width, bar, "####################", done, total, kind, name)
}

func (p *Progress) result(r Result) {
	if p == nil {
		return
	}
	if p.terminal {
		fmt.Fprint(p.w, eraseLine)
	}
	// Why a whole kind of memory is skipped need be said only once.
	why := r.Kind + r.Reason
	if r.Status == Skipped && why == p.said {
		return
	}
	p.said = why
	r.print(p.w)
}
