package mempool

import (
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// registration registers a page with the driver, once for all users of the page in this process.
type registration struct {
	mu      sync.Mutex
	host    *cuda.HostRegistration
	failure error // why the page cannot be registered
	streams map[*cuda.Stream]struct{}
}

// address returns the address at which the GPU of queue q accesses a word of page p. The first call registers the page with the driver.
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
			r.failure = typed.Errorf(ErrUnavailable, "the driver cannot register a timeline: %v", err)
		}
		r.streams = make(map[*cuda.Stream]struct{})
	}
	if r.failure != nil {
		return 0, r.failure
	}
	r.streams[q.stream] = struct{}{}
	return r.host.DevicePtr() + cuda.DevicePtr(word*8), nil
}

// idle reports whether the method `close` can end the registration without a wait. The driver ends a registration only when the whole GPU
// has no work. So idle returns true only if the streams that use the page, and all device streams of this process, have finished their
// work.
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

// close waits until the streams that use the page have finished their work, and then ends the registration. The caller must not unmap the
// page while a stream uses it. The result `free` is true if the page is not registered any more.
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
