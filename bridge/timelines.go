package bridge

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/situation"
	"github.com/poolbridge/poolbridge/mempool"
)

// timelines are the pages that a client has mapped: the page of its own timeline, and the pages of other sessions' timelines that fences
// named.
type timelines struct {
	making sync.Mutex // held while the client's own timeline is made

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

// Clock returns the clock of the client's own timeline. A program uses this clock to make fences for its own work on the memory.
//
// Errors: [ErrUnavailable] if the service has no timelines.
func (c *Client) Clock(ctx context.Context) (*Clock, error) {
	if !c.ordered {
		return nil, situation.Of(ErrUnavailable, "the service has no timelines")
	}
	t := &c.timelines
	if clock := t.own(); clock != nil {
		return clock, nil
	}
	t.making.Lock()
	defer t.making.Unlock()
	if clock := t.own(); clock != nil {
		return clock, nil
	}
	id, page, err := c.mapTimeline(ctx, 0)
	if err != nil {
		return nil, err
	}
	// Do not wait for an answer to Seal: if ctx ended during this wait, the page would be lost, because a client cannot map a sealed page for
	// writing again. Clock need not wait: the service handles requests in order, so it seals the timeline before it handles any later request
	// of this client.
	if err := c.send(0, &wire.Seal{}); err != nil {
		return nil, errors.Join(err, page.Close())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.Join(errClientClosed, page.Close())
	}
	t.clock = mempool.NewClock(id, page)
	return t.clock, nil
}

func (t *timelines) own() *mempool.Clock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock
}

// mapTimeline maps the page of a timeline. The id 0 means the client's own timeline: mapTimeline maps the page of this timeline for
// writing.
func (c *Client) mapTimeline(ctx context.Context, id uint64) (uint64, *mempool.Page, error) {
	var reply wire.TimelineReply
	var files []*os.File
	err := c.call(ctx, &wire.GetTimeline{Timeline: id}, &call{into: &reply,
		files: func(fds *seqpacket.FDs) { files = takeFiles(fds, reply.Export.FDs) },
		undo:  func() { closeFiles(files) }})
	if err != nil {
		return 0, nil, err
	}
	defer closeFiles(files)
	page, err := mempool.MapPage(convert.Export(&reply.Export, files), id == 0)
	return reply.Timeline, page, err
}

// page returns the page of a timeline. It maps the page if necessary. The page stays mapped while a lease waits for a fence of the
// timeline.
func (c *Client) page(ctx context.Context, id uint64) (*mempool.Page, error) {
	t := &c.timelines
	if page, err := t.find(id); page != nil || err != nil {
		return page, err
	}
	_, page, err := c.mapTimeline(ctx, id)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if had := t.pages[id]; had != nil { // another goroutine mapped the page at the same time
		return had, page.Close()
	}
	if t.closed {
		return nil, errors.Join(errClientClosed, page.Close())
	}
	if t.pages == nil {
		t.pages = make(map[uint64]*mempool.Page)
	}
	t.pages[id] = page
	return page, nil
}

func (t *timelines) find(id uint64) (*mempool.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, errClientClosed
	case t.clock != nil && t.clock.Timeline() == id:
		return t.clock.Page(), nil
	}
	return t.pages[id], nil
}

// forget unmaps timelines that no fence will name again, as soon as no stream waits on these timelines.
func (t *timelines) forget(ids []uint64) {
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

// left removes the fences that are certainly reached, and returns the remaining fences.
func (t *timelines) left(fences []mempool.Fence) []mempool.Fence {
	return slices.DeleteFunc(fences, func(fence mempool.Fence) bool {
		page, err := t.find(fence.Timeline)
		if page == nil || err != nil {
			return false
		}
		over, _ := page.Over(fence)
		return over
	})
}

// pin keeps the timelines of fences mapped until unpin.
func (t *timelines) pin(fences []mempool.Fence) {
	if len(fences) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fence := range fences {
		if t.pins == nil {
			t.pins = make(map[uint64]pin)
		}
		p := t.pins[fence.Timeline]
		p.leases++
		t.pins[fence.Timeline] = p
	}
}

func (t *timelines) unpin(fences []mempool.Fence) {
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
		t.forget(forgotten)
	}
}

// past reports whether a fence of the client's own timeline is reached.
func (t *timelines) past(own mempool.Fence) bool {
	clock := t.own()
	return clock != nil && clock.Past(own)
}

// await waits for a fence of the client's own timeline. It returns false if the channel `done` is closed before the fence is reached.
func (t *timelines) await(done <-chan struct{}, own mempool.Fence) bool {
	clock := t.own()
	if clock == nil {
		return true
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-done:
			cancel()
		case <-stop:
		}
	}()
	return clock.Await(ctx, own) == nil
}

// quiesce waits until the client's own work is done. Until then the client must not unmap memory that the work uses.
func (t *timelines) quiesce() error {
	clock := t.own()
	if clock == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), workLimit)
	defer cancel()
	return clock.Quiesce(ctx)
}

func (t *timelines) close() error {
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
