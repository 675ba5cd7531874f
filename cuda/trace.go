package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// The record of open objects, kept for tests.
var (
	tracing atomic.Bool
	open    sync.Map // *life to string: what it is and who made it
)

// TraceObjects begins a record of every object that is made and not closed, and
// of the line that made it. It is for tests, to be switched on in TestMain.
func TraceObjects() { tracing.Store(true) }

// OpenObjects lists what was made since TraceObjects and is not closed, by the
// call that made it and that call's line. Empty means that nothing leaks.
func OpenObjects() []string {
	var list []string
	open.Range(func(_, made any) bool {
		list = append(list, made.(string))
		return true
	})
	slices.Sort(list)
	return list
}

// opened records an object; op is the method that makes it.
func opened(l *life, op string) {
	if tracing.Load() {
		open.Store(l, fmt.Sprintf("%s at %s", op, caller()))
	}
}

func ended(l *life) {
	if tracing.Load() {
		open.Delete(l)
	}
}

// caller is the first line outside this package.
func caller() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "github.com/poolbridge/poolbridge/cuda.") || !more {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
}
