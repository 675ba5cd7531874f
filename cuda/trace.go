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

// TraceObjects starts a record of the objects that are made and not closed yet, with the line of code that made each object. Tests call
// TraceObjects in TestMain.
func TraceObjects() { tracing.Store(true) }

// OpenObjects lists the objects that were made after the call of TraceObjects and are not closed. Each entry names the method that made the
// object, and the line of code that called the method. If the list is empty, every object was closed.
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

// caller returns the first line of the call stack that is outside of this package.
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
