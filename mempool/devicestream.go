package mempool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
)

// deviceStream is the stream in which this process works on one GPU. All pools on the GPU share this stream, so that the work on all of
// them is in one order and needs only one word of a timeline. Work in this stream may wait for other processes. Work that must not wait for
// other processes uses other streams.
type deviceStream struct {
	ctx     *cuda.Context
	stream  *cuda.Stream
	queue   *streamQueue
	staging staging
	users   int // guarded by deviceStreams.mu
}

// deviceStreams has the device streams in use, by GPU.
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

// streamKey is the key that [Queue].orderKey returns for a deviceStream. If this process closes the deviceStream of a GPU and opens it
// again, the key is the same, so the clock uses the same word of the timeline.
type streamKey struct{ device cuda.Device }

// deviceStreamsIdle reports whether all work in the device streams is done.
func deviceStreamsIdle() bool {
	if !deviceStreams.mu.TryLock() { // leave() holds mu while it waits for the last work of a device stream
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

// leave ends one use of the deviceStream. After the last use, leave waits for the stream's work and closes the stream.
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
