package session

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Timelines are the pages that a session has mapped: the page of its own timeline, and the pages of other sessions' timelines that fences
// named.
type Timelines struct {
	session   *Session
	available bool          // the service has timelines
	order     mempool.Order // the beginning of every order
	making    sync.Mutex    // held while the session's own timeline is made

	mu     sync.Mutex
	clock  *mempool.Clock
	pages  map[uint64]*mempool.Page
	closed bool
	unused []*mempool.Page // forgotten pages that streams may still wait on
	pins   map[uint64]pin
}

// pin keeps a timeline mapped for leases that wait for it and that the service does not know.
type pin struct {
	leases    int
	forgotten bool // the service has forgotten the timeline
}

func (t *Timelines) start(s *Session) {
	t.session, t.pages, t.pins = s, make(map[uint64]*mempool.Page), make(map[uint64]pin)
	t.order = mempool.Order{Pages: t.Page, Clock: t.Clock}
}

// Order returns a new order, for work on memory of the session.
func (t *Timelines) Order() *mempool.Order {
	return &mempool.Order{Pages: t.order.Pages, Clock: t.order.Clock}
}

// Clock returns the clock of the session's own timeline. It makes the timeline if necessary.
func (t *Timelines) Clock(ctx context.Context) (*mempool.Clock, error) {
	if !t.available {
		return nil, typed.Errorf(mempool.ErrUnavailable, "the service has no timelines")
	}
	if clock := t.Own(); clock != nil {
		return clock, nil
	}
	t.making.Lock()
	defer t.making.Unlock()
	if clock := t.Own(); clock != nil {
		return clock, nil
	}
	id, page, err := t.mapPage(ctx, 0)
	if err != nil {
		return nil, err
	}
	// Do not wait for an answer to Seal: if ctx ended during this wait, the page would be lost, because a client cannot map a sealed page for
	// writing again. Clock need not wait: the service handles requests in order, so it seals the timeline before it handles any later request
	// of this session.
	if err := t.session.Send(&wire.Seal{}); err != nil {
		return nil, errors.Join(err, page.Close())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.Join(ErrClientClosed, page.Close())
	}
	t.clock = mempool.NewClock(id, page)
	return t.clock, nil
}

// Own returns the clock of the session's own timeline, or nil if the session has none yet.
func (t *Timelines) Own() *mempool.Clock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock
}

// mapPage maps the page of a timeline. The id 0 means the session's own timeline: mapPage maps the page of this timeline for writing.
func (t *Timelines) mapPage(ctx context.Context, id uint64) (uint64, *mempool.Page, error) {
	var reply wire.TimelineReply
	var files []*os.File
	err := t.session.Do(ctx, &wire.GetTimeline{Timeline: id}, &Call{Into: &reply,
		OnReply: func(fds *seqpacket.FDs) { files = TakeFiles(fds, reply.Export.FDs) },
		Undo:    func() { CloseFiles(files) }})
	if err != nil {
		return 0, nil, err
	}
	defer CloseFiles(files)
	page, err := mempool.MapPage(convert.Export(&reply.Export, files), id == 0)
	return reply.Timeline, page, err
}

// Page returns the page of a timeline. It maps the page if necessary. The page stays mapped until the service has
// forgotten the timeline (see [Timelines.Forget]) and no lease and no stream waits for a fence of it, or until Close.
func (t *Timelines) Page(ctx context.Context, id uint64) (*mempool.Page, error) {
	if page, err := t.Find(id); page != nil || err != nil {
		return page, err
	}
	_, page, err := t.mapPage(ctx, id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if had := t.pages[id]; had != nil { // another goroutine mapped the page at the same time
		return had, page.Close()
	}
	if t.closed {
		return nil, errors.Join(ErrClientClosed, page.Close())
	}
	t.pages[id] = page
	return page, nil
}

// Find returns the page of a timeline, or nil if the page is not mapped.
func (t *Timelines) Find(id uint64) (*mempool.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, ErrClientClosed
	case t.clock != nil && t.clock.Timeline() == id:
		return t.clock.Page(), nil
	}
	return t.pages[id], nil
}

// Forget unmaps timelines that no fence will name again, as soon as no stream waits on these timelines.
func (t *Timelines) Forget(ids []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if p, pinned := t.pins[id]; pinned {
			p.forgotten = true
			t.pins[id] = p
		} else if page := t.pages[id]; page != nil {
			delete(t.pages, id)
			t.unused = append(t.unused, page)
		}
	}
	left := t.unused[:0]
	for _, page := range t.unused {
		if t.closed || !page.Idle() || page.Close() != nil {
			left = append(left, page)
		}
	}
	t.unused = left
}

// Left removes the fences that are certainly reached, and returns the remaining fences.
func (t *Timelines) Left(fences []mempool.Fence) []mempool.Fence {
	return slices.DeleteFunc(fences, func(fence mempool.Fence) bool {
		page, err := t.Find(fence.Timeline)
		if page == nil || err != nil {
			return false
		}
		over, _ := page.Over(fence)
		return over
	})
}

// Pending leaves out the fences that are certainly reached, and returns the remaining fences. Unlike Left, it maps pages if necessary.
func (t *Timelines) Pending(ctx context.Context, fences []mempool.Fence) (left []mempool.Fence) {
	for _, fence := range fences {
		page, err := t.Page(ctx, fence.Timeline)
		if Forgotten(err) {
			continue
		}
		if err == nil {
			if over, _ := page.Over(fence); over {
				continue
			}
		}
		left = append(left, fence)
	}
	return left
}

// Forgotten reports whether an error of Page means that the service has forgotten the timeline. The service forgets the timeline of a member
// only after all work of the member has ended.
func Forgotten(err error) bool { return errors.Is(err, mempool.ErrStale) }

// Pin keeps the timelines of fences mapped until Unpin.
func (t *Timelines) Pin(fences []mempool.Fence) {
	if len(fences) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fence := range fences {
		p := t.pins[fence.Timeline]
		p.leases++
		t.pins[fence.Timeline] = p
	}
}

// Unpin ends what Pin began.
func (t *Timelines) Unpin(fences []mempool.Fence) {
	if len(fences) == 0 {
		return
	}
	var forgotten []uint64
	t.mu.Lock()
	for _, fence := range fences {
		p := t.pins[fence.Timeline]
		if p.leases--; p.leases > 0 {
			t.pins[fence.Timeline] = p
			continue
		}
		delete(t.pins, fence.Timeline)
		if p.forgotten {
			forgotten = append(forgotten, fence.Timeline)
		}
	}
	t.mu.Unlock()
	if len(forgotten) > 0 {
		t.Forget(forgotten)
	}
}

// Past reports whether a fence of the session's own timeline is reached.
func (t *Timelines) Past(own mempool.Fence) bool {
	clock := t.Own()
	return clock != nil && clock.Past(own)
}

// await waits for a fence of the session's own timeline. It returns false if the connection is gone before the fence is reached.
func (t *Timelines) await(own mempool.Fence) bool {
	clock := t.Own()
	return clock == nil || clock.Await(t.session.linked, own) == nil
}

// Quiesce waits until the session's own work is done. Until then the client must not unmap memory that the work uses.
func (t *Timelines) Quiesce() error {
	clock := t.Own()
	if clock == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), WorkLimit)
	defer cancel()
	return clock.Quiesce(ctx)
}

// Close unmaps all timelines.
func (t *Timelines) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	pages := t.unused
	for _, page := range t.pages {
		pages = append(pages, page)
	}
	if t.clock != nil {
		t.clock.Close()
		pages = append(pages, t.clock.Page())
	}
	t.clock, t.pages, t.unused = nil, nil, nil
	var errs []error
	for _, page := range pages {
		errs = append(errs, page.Close())
	}
	return errors.Join(errs...)
}
