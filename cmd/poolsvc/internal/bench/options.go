package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

// Options says what to measure, and with which settings.
type Options struct {
	// Python is the interpreter of the workers. It must have the poolbridge package.
	Python string
	// Poolsvc is the program that runs the measured service.
	Poolsvc string
	// Device is the GPU to use, an ordinal or a UUID.
	Device string
	// Kinds are the kinds of memory to measure. If Kinds is empty, Run measures the kinds host and device.
	Kinds []mempool.Kind
	// Only has the names of the workloads to run. If Only is empty, Run runs all workloads.
	Only []string
	// Sizes are the sizes of the transferred buffers in bytes. If Sizes is empty, Run uses sizes from 4 KiB to 1 GiB.
	Sizes []uint64
	// Time is the approximate duration of one measurement, in all rounds together.
	Time time.Duration
	// Rounds is how often everything is measured, in turn. The rounds show how much a figure changes although nothing has changed.
	Rounds int
	// Before is an earlier report with which the new one is compared; nil: there is none.
	Before *Report
	// MaxBuffers and MaxSessions limit how many buffers and sessions exist at the same time in the workload `growth`.
	MaxBuffers, MaxSessions int
	// Consumers are the numbers of consumers that take the frames of one stream, in ascending order. A stream is a measurement in which a
	// producer publishes many frames in one channel. If Consumers is empty, Run uses 1, 2, 4 and 8.
	Consumers []int
	// Progress gets each result as soon as the result is measured. If Progress is nil, Run shows no progress.
	Progress *display.Progress
}

// Workloads returns the names that the field Only of Options may contain.
func Workloads() []string {
	names := make([]string, len(workloads))
	for i, w := range workloads {
		names[i] = w.name
	}
	return names
}

// Validate returns an error if the options are not valid.
func (o Options) Validate() error {
	for _, name := range o.Only {
		if !slices.Contains(Workloads(), name) {
			return fmt.Errorf("there is no workload %q: expected one of %s", name, strings.Join(Workloads(), ", "))
		}
	}
	for _, kind := range o.Kinds {
		if !slices.Contains(mempool.Kinds(), kind) {
			return fmt.Errorf("there is no kind %q of memory: expected one of %v", kind, mempool.Kinds())
		}
	}
	if o.Time <= 0 {
		return fmt.Errorf("the time of a measurement must be more than 0, not %v", o.Time)
	}
	if o.Rounds < 1 {
		return fmt.Errorf("a bench has at least 1 round, not %d", o.Rounds)
	}
	least := 1
	for _, n := range o.Consumers {
		if n < least {
			return fmt.Errorf("the numbers of consumers must be at least 1 and in ascending order, as in 1,2,8, each once, not %v", o.Consumers)
		}
		least = n + 1
	}
	if o.Before != nil && o.Rounds < LeastRounds {
		return fmt.Errorf("a comparison needs at least %d rounds, not %d", LeastRounds, o.Rounds)
	}
	return nil
}

func (o Options) kinds() []mempool.Kind {
	if len(o.Kinds) > 0 {
		return o.Kinds
	}
	return []mempool.Kind{mempool.Host, mempool.Device}
}

func (o Options) consumers() []int {
	if len(o.Consumers) > 0 {
		return o.Consumers
	}
	return []int{1, 2, 4, 8}
}

func (o Options) sizes() []uint64 {
	if len(o.Sizes) > 0 {
		return o.Sizes
	}
	return []uint64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30}
}

func (o Options) wants(workload string) bool {
	return len(o.Only) == 0 || slices.Contains(o.Only, workload)
}
