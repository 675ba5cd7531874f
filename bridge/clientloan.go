package bridge

import (
	"context"
	"errors"

	"github.com/poolbridge/poolbridge/mempool"
)

// sending is the memory of a write lease that the user has given to a channel. Either the channel still has the memory, or the memory has come
// back from the channel to the client.
type sending struct {
	info   *mempool.LeaseInfo // LeaseInfo of the lease
	mem    *mempool.ImportedBlock
	memory mempool.Memory
	own    bool
	wait   []mempool.Fence // fences that must be reached before the memory is written
	record frameRecord     // record of the frame
}

// add adds a fence to l.wait. For each word of a timeline, add keeps only the greatest value.
func (l *sending) add(t mempool.Fence) {
	for i := range l.wait {
		if have := &l.wait[i]; have.Timeline == t.Timeline && have.Word == t.Word {
			have.Value = max(have.Value, t.Value)
			return
		}
	}
	l.wait = append(l.wait, t)
}

// giveUp releases a lease whose memory came back from a channel. Before the release, the fences of the channel's consumers must be reached,
// because the service does not know these fences. If a fence is not reached yet, giveUp starts a goroutine that waits for the fence and
// then releases the lease. `done` has the client's own fences; giveUp passes them to the service.
func (c *Client) giveUp(l *sending, done ...mempool.Fence) error {
	if c.linked.Err() != nil { // the lease has ended with the session
		return context.Cause(c.linked)
	}
	wait := c.pending(c.linked, l.wait)
	if len(wait) == 0 {
		return c.releaseLoan(l, done)
	}
	c.shared.giving.Add(1)
	c.background.Go(func() {
		defer c.shared.giving.Done()
		for _, t := range wait {
			switch page, err := c.page(c.linked, t.Timeline); {
			case err == nil:
				_ = page.Await(c.linked, t) // if the timeline's process died, or the service forgot the timeline, no work is left
			case !forgotten(err):
				return // nobody knows whether the fence is reached, so the lease ends only with the session
			}
		}
		if c.linked.Err() == nil {
			_ = c.releaseLoan(l, done) // releaseLoan fails only if the connection is gone
		}
	})
	return nil
}

// forgotten reports whether an error means that the service has forgotten a timeline. The service forgets the timeline of a member only
// after all work of the member has ended.
func forgotten(err error) bool {
	return errors.Is(err, ErrStale)
}

func (c *Client) releaseLoan(l *sending, done []mempool.Fence) error {
	err := c.sendRelease(l.info, false, done)
	return errors.Join(err, c.ended(l.info.Block, done...))
}

// pending leaves out the fences that are certainly reached, and returns the remaining fences.
func (c *Client) pending(ctx context.Context, fences []mempool.Fence) (left []mempool.Fence) {
	for _, t := range fences {
		page, err := c.page(ctx, t.Timeline)
		if forgotten(err) {
			continue
		}
		if err == nil {
			if over, _ := page.Over(t); over {
				continue
			}
		}
		left = append(left, t)
	}
	return left
}
