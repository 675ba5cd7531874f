package seqpacket

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// tracer records where each live FD was made.
var tracer struct {
	sync.Mutex
	open map[*FD]origin
}

type origin struct {
	raw   int
	stack [16]uintptr
}

// traceFDs starts to record where each FD is made.
func traceFDs() {
	tracer.open = make(map[*FD]origin)
	onNew = func(f *FD, raw int) {
		o := origin{raw: raw}
		runtime.Callers(3, o.stack[:]) // skips runtime.Callers, this function and NewFD
		tracer.Lock()
		defer tracer.Unlock()
		tracer.open[f] = o
	}
	onEnd = func(f *FD) {
		tracer.Lock()
		defer tracer.Unlock()
		delete(tracer.open, f)
	}
}

// leakedFDs describes each FD that is neither closed nor taken: the descriptor's number and the stack trace of the call of NewFD.
func leakedFDs() []string {
	tracer.Lock()
	defer tracer.Unlock()
	var leaks []string
	for _, o := range tracer.open {
		leaks = append(leaks, o.String())
	}
	return leaks
}

func (o origin) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "descriptor %d made at", o.raw)
	frames := runtime.CallersFrames(o.stack[:])
	for {
		frame, more := frames.Next()
		if frame.Function != "" {
			fmt.Fprintf(&b, "\n\t%s\n\t\t%s:%d", frame.Function, frame.File, frame.Line)
		}
		if !more {
			return b.String()
		}
	}
}
