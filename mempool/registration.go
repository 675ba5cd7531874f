package mempool

import (
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// registration registers a page with the driver, once for all users of the page in this process.
type registration struct {
	mu      sync.Mutex
	host    *cuda.HostRegistration
	failure error // why the page cannot be registered
	streams map[*cuda.Stream]struct{}
}

// address returns the address of a word of the page for the GPU of a queue. The first call registers the page.
//
// Errors: [ErrUnavailable] if the driver cannot register the page.
func (r *registration) address(p *Page, q *streamQueue, word uint64) (cuda.DevicePtr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host == nil && r.failure == nil {
		flags := cuda.HostPortable | cuda.HostDeviceMap
		if !p.write {
			flags |= cuda.HostReadOnly
		}
		var err error
		if r.host, err = q.ctx.RegisterHost(p.mem[:wordBytes], flags); err != nil {
			r.failure = situation.Of(ErrUnavailable, "the driver cannot register a timeline: %v", err)
		}
		r.streams = make(map[*cuda.Stream]struct{})
	}
	if r.failure != nil {
		return 0, r.failure
	}
	r.streams[q.stream] = struct{}{}
	return r.host.DevicePtr() + cuda.DevicePtr(word*8), nil
}

// idle reports whether close can end the registration without waiting. For this, the streams that use the page and all device streams must
// have finished their work, because the driver ends a registration only when the whole device is idle.
func (r *registration) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host == nil {
		return true
	}
	for s := range r.streams {
		if done, err := s.Query(); err == nil && !done {
			return false
		}
	}
	return deviceStreamsIdle()
}

// close waits for the streams that use the page, and then ends the registration. The page must not be unmapped while a stream uses it. The
// result free reports whether the page is not registered any more.
func (r *registration) close() (free bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host == nil {
		return true, nil
	}
	var errs []error
	for s := range r.streams {
		if err := insist(s.Synchronize); !errors.Is(err, cuda.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if err = insist(r.host.Close); err == nil {
		r.host = nil
	}
	return err == nil, deviceError("end the registration of a timeline", errors.Join(append(errs, err)...))
}
