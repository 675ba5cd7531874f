package mempool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
)

// lane is this process's line of work on one GPU: one stream for all pools on it, so that their work is in order and takes
// one word of a timeline. It may wait for other processes; what must not wait uses streams of its own.
type lane struct {
	ctx     *cuda.Context
	stream  *cuda.Stream
	queue   *streamQueue
	staging staging
	users   int // guarded by lanes.mu
}

// lanes are the lanes in use.
var lanes = struct {
	mu sync.Mutex
	on map[cuda.Device]*lane
}{on: make(map[cuda.Device]*lane)}

func openLane(d cuda.Device) (*lane, error) {
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	if l := lanes.on[d]; l != nil {
		l.users++
		return l, nil
	}
	ctx, err := d.Retain()
	if err != nil {
		return nil, deviceError(fmt.Sprintf("use GPU %d", d.Ordinal()), err)
	}
	stream, err := ctx.NewStream()
	if err != nil {
		return nil, errors.Join(deviceError("make a stream", err), insist(ctx.Close))
	}
	l := &lane{ctx: ctx, stream: stream, users: 1}
	l.queue = newStreamQueue(ctx, stream, laneOf{d})
	l.staging.open(l)
	lanes.on[d] = l
	return l, nil
}

// laneOf is what tells a lane from other queues. A lane that is opened again after its end goes on in the same word.
type laneOf struct{ device cuda.Device }

// lanesIdle says whether all that was begun in the lanes is done.
func lanesIdle() bool {
	if !lanes.mu.TryLock() { // held while a lane's last work is waited for
		return false
	}
	defer lanes.mu.Unlock()
	for _, l := range lanes.on {
		if done, err := l.stream.Query(); err == nil && !done {
			return false
		}
	}
	return true
}

// leave ends one use of the lane; the last one waits for its work and ends it.
func (l *lane) leave() error {
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	if l.users--; l.users > 0 {
		return nil
	}
	delete(lanes.on, l.ctx.Device())
	err := errors.Join(insist(l.stream.Synchronize), insist(l.staging.close), insist(l.stream.Close), insist(l.ctx.Close))
	return deviceError("end the work on a GPU", err)
}
