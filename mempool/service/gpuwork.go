package service

import (
	"time"

	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// This file polls the fences of blocks that the service can free or reuse only when the GPU work on them is done. The service must poll,
// because a stream that writes a word of a timeline does not notify the service. A goroutine polls as long as there is such a block. The
// first pause between two polls is drainPause. The pauses grow up to drainRest.
const (
	drainPause = 100 * time.Microsecond
	drainRest  = 10 * time.Millisecond
)

// These constants limit how many blocks recharge checks in one call, because all sessions wait for Service.mu during the call. If at most
// fewCharged blocks count for processes, every call checks all these blocks. If more blocks count, recharge checks blocks at most once in
// the time drainRest, and then at most manyCharged of them.
const (
	fewCharged  = 64
	manyCharged = 1024
)

// await calls next, with Service.mu held, once no GPU work uses b any more.
func (d *draining) await(b *ledger.Block, next func()) {
	d.next[b] = next
	if len(d.next) == 1 {
		d.svc.drains.Go(d.poll)
	}
}

func (d *draining) poll() {
	for pause, left := drainPause, 1; left > 0; pause = min(2*pause, drainRest) {
		time.Sleep(pause)
		d.svc.mu.Lock()
		looks := manyCharged
		for b, next := range d.next { // the order of the blocks is random
			if looks--; looks < 0 {
				break
			}
			if d.svc.timelines.Quiet(b) {
				delete(d.next, b)
				next()
				pause = drainPause
			}
		}
		left = len(d.next)
		d.svc.freeAndUnlock()
	}
}

// soon returns a signal that fires after drainRest. Callers use it to poll counter words.
func soon() *signal {
	ch := make(chan struct{})
	time.AfterFunc(drainRest, func() { close(ch) })
	return &signal{ch: ch}
}

// maxFences is the greatest number of fences with which a free block may be used again at once: the service sends all these fences to the
// block's next user.
const maxFences = 256
