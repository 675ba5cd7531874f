package mempool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
)

// deviceStream is this process's line of work on one GPU: one stream for all pools on it, so that their work is in order and takes
// one word of a timeline. It may wait for other processes; what must not wait uses streams of its own.
type deviceStream struct {
	ctx     *cuda.Context
	stream  *cuda.Stream
	queue   *streamQueue
	staging staging
	users   int // guarded by deviceStreams.mu
}

// deviceStreams has the device stream of each GPU in use.
var deviceStreams = struct {
	mu sync.Mutex
	on map[cuda.Device]*deviceStream
}{on: make(map[cuda.Device]*deviceStream)}

func openDeviceStream(d cuda.Device) (*deviceStream, error) {
	deviceStreams.mu.Lock()
	defer deviceStreams.mu.Unlock()
	if l := deviceStreams.on[d]; l != nil {
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
	l := &deviceStream{ctx: ctx, stream: stream, users: 1}
	l.queue = newStreamQueue(ctx, stream, streamKey{d})
	l.staging.open(l)
	deviceStreams.on[d] = l
	return l, nil
}

// streamKey is what tells a deviceStream from other queues. A deviceStream that is opened again after its end goes on in the same word.
type streamKey struct{ device cuda.Device }

// deviceStreamsIdle says whether all that was begun in the device streams is done.
func deviceStreamsIdle() bool {
	if !deviceStreams.mu.TryLock() { // held while a device stream's last work is waited for
		return false
	}
	defer deviceStreams.mu.Unlock()
	for _, l := range deviceStreams.on {
		if done, err := l.stream.Query(); err == nil && !done {
			return false
		}
	}
	return true
}

// leave ends one use of the deviceStream; the last one waits for its work and ends it.
func (l *deviceStream) leave() error {
	deviceStreams.mu.Lock()
	defer deviceStreams.mu.Unlock()
	if l.users--; l.users > 0 {
		return nil
	}
	delete(deviceStreams.on, l.ctx.Device())
	err := errors.Join(insist(l.stream.Synchronize), insist(l.staging.close), insist(l.stream.Close), insist(l.ctx.Close))
	return deviceError("end the work on a GPU", err)
}
