// Package upkeep returns unused heap memory of a service to the system.
package upkeep

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// Rest is the time between two checks of the memory. Package upkeep makes these checks because Go's own garbage collector runs only when
// the program allocates memory, or after two minutes, and returns freed memory slowly.
const Rest = 20 * time.Second

// Run collects garbage when the process uses at least moreBytes more memory than after the last collection. Run also counts the goroutines,
// leases, buffers and names together. Let N be this count after the last collection. Run collects garbage if the count is now at most N/2
// and at least fewerThings less than N.
const (
	moreBytes   = 16 << 20
	fewerThings = 1000
)

// state is the memory of the process, and the number of things that use memory.
type state struct {
	bytes uint64 // bytes that the process got from the system
	load  int    // number of goroutines, leases, buffers and names
}

func measure(svc *service.Service) state {
	sizes := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(sizes)
	s := svc.Stats()
	return state{sizes[0].Value.Uint64() - sizes[1].Value.Uint64(), runtime.NumGoroutine() + s.Leases + s.Buffers + s.Names}
}

// Run returns unused memory to the system until ctx ends. At each tick, it checks whether the process uses much more memory than after the
// last garbage collection, or whether most of the goroutines, leases, buffers and names of that time are gone.
func Run(ctx context.Context, svc *service.Service, ticks <-chan time.Time) {
	last := measure(svc)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		now := measure(svc)
		grown := now.bytes >= last.bytes+moreBytes
		gone := now.load+fewerThings <= last.load && now.load <= last.load/2
		if !grown && !gone {
			continue
		}
		debug.FreeOSMemory()
		last = measure(svc)
	}
}
