package upkeep

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// storm starts n goroutines that wait until the caller calls over.
func storm(n int) (over func()) {
	end := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			var deep [4096]byte
			<-end
			_ = deep
		})
	}
	return func() {
		close(end)
		all.Wait()
	}
}

func TestMemoryGoesBackToTheSystemAfterAStorm(t *testing.T) {
	for name, during := range map[string]int{"that nobody looked at": 0, "that was looked at": 2} {
		t.Run(name, func(t *testing.T) {
			svc := service.New(service.Config{})
			defer svc.Close()
			ctx, cancel := context.WithCancel(t.Context())
			ticks := make(chan time.Time)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				Run(ctx, svc, ticks)
			}()
			tick := func(times int) {
				for range times + 1 { // Run receives the last tick only after it has handled the ticks before
					ticks <- time.Time{}
				}
			}
			tick(0)
			over := storm(10_000)
			if during > 0 {
				tick(during)
			}
			high := measure(svc).bytes
			over()
			tick(1)
			assert.Less(t, measure(svc).bytes, high/2)
			cancel()
			<-ended
		})
	}
}
