// Package upkeep gives memory back to the system that a service needed for a while.
package upkeep

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// Rest is how often to look. The collector alone runs only when something is allocated, or after two minutes, and then keeps
// what it freed for long.
const Rest = 20 * time.Second

// What makes it worthwhile to collect: so many bytes more since the last time, or so many things less and less than half.
const (
	moreBytes   = 16 << 20
	fewerThings = 1000
)

// state is what the process has, and what for.
type state struct {
	bytes uint64 // taken from the system and not given back
	load  int    // of things that take memory
}

func look(svc *service.Service) state {
	sizes := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(sizes)
	s := svc.Stats()
	return state{sizes[0].Value.Uint64() - sizes[1].Value.Uint64(), runtime.NumGoroutine() + s.Leases + s.Buffers + s.Names}
}

// Run gives memory back at ticks when there may be much of it, until ctx ends: after the process has taken more, and after most
// of what took it is gone.
func Run(ctx context.Context, svc *service.Service, ticks <-chan time.Time) {
	last := look(svc)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		now := look(svc)
		grown := now.bytes >= last.bytes+moreBytes
		gone := now.load+fewerThings <= last.load && now.load <= last.load/2
		if !grown && !gone {
			continue
		}
		debug.FreeOSMemory()
		last = look(svc)
	}
}
