package seqpacket

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// tracer records where each live FD was made, while tracing is on.
var tracer struct {
	on   atomic.Bool
	mu   sync.Mutex
	open map[*FD]origin
}

type origin struct {
	raw   int
	stack [16]uintptr
}

// TraceFDs starts to record where each FD is made. Call TraceFDs in TestMain. After this call, NewFD records a stack trace for each new FD,
// which makes NewFD slower.
func TraceFDs() {
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	tracer.open = make(map[*FD]origin)
	tracer.on.Store(true)
}

// LeakedFDs describes each FD that was made after the call of TraceFDs and is neither closed nor taken. A description has the descriptor's
// number and the stack trace of the call of NewFD.
func LeakedFDs() []string {
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	var leaks []string
	for _, o := range tracer.open {
		leaks = append(leaks, o.String())
	}
	return leaks
}

func trace(f *FD, raw int) {
	if !tracer.on.Load() {
		return
	}
	o := origin{raw: raw}
	runtime.Callers(3, o.stack[:]) // skips runtime.Callers, trace and NewFD
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	tracer.open[f] = o
}

func untrace(f *FD) {
	if !tracer.on.Load() {
		return
	}
	tracer.mu.Lock()
	defer tracer.mu.Unlock()
	delete(tracer.open, f)
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
