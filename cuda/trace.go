package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// The record of open objects, for tests.
var (
	tracing atomic.Bool
	open    sync.Map // *life to string: the method that made the object, and its caller's line
)

// TraceObjects begins to record every object that is made and not closed, with
// the line that made the object. Tests call it in TestMain.
func TraceObjects() { tracing.Store(true) }

// OpenObjects lists the objects that were made since TraceObjects and are not
// closed. Each entry names the method that made the object and the line of the
// call. An empty list means that nothing leaks.
func OpenObjects() []string {
	var list []string
	open.Range(func(_, made any) bool {
		list = append(list, made.(string))
		return true
	})
	slices.Sort(list)
	return list
}

// opened records an object. op is the method that makes the object.
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

// caller returns the first line of the call stack that is outside of this
// package.
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
