package mempool

import (
	"errors"
	"sync"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// registration makes a page known to the driver: once in a process, whatever uses it.
type registration struct {
	mu      sync.Mutex
	host    *cuda.HostRegistration
	failure error // why it cannot be
	streams map[*cuda.Stream]struct{}
}

// address is where the GPU of a queue finds a word of the page.
//
// Errors: [ErrUnavailable] where the driver cannot do it.
func (r *registration) address(p *Page, q *streamQueue, word uint64) (cuda.DevicePtr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host == nil && r.failure == nil {
		flags := cuda.HostPortable | cuda.HostDeviceMap
		if !p.write {
			flags |= cuda.HostReadOnly
		}
		var err error
		if r.host, err = q.ctx.RegisterHost(p.mem, flags); err != nil {
			r.failure = situation.Of(ErrUnavailable, "a timeline cannot be made known to the driver: %v", err)
		}
		r.streams = make(map[*cuda.Stream]struct{})
	}
	if r.failure != nil {
		return 0, r.failure
	}
	r.streams[q.stream] = struct{}{}
	return r.host.DevicePtr() + cuda.DevicePtr(word*8), nil
}

// idle says whether the registration can end without waiting: no stream uses the page, and no deviceStream waits for anything else,
// for the driver ends registrations only when the whole device is done.
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

// close waits for the streams that use the page: what they wait for must not vanish. It tells whether the driver let go of
// the page.
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
