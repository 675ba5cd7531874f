package work

import (
	"context"
	"fmt"
	"time"
)

// wait waits for a pool, a channel, a name or the service, and returns how long that took.
func (w *Worker) wait(ctx context.Context, t *Task) (*Answer, error) {
	start := time.Now()
	c, err := w.connected(ctx, t.timeout())
	if err != nil {
		return nil, err
	}
	switch t.What {
	case "service":
	case "pool":
		_, err = c.OpenPool(ctx, t.Name, t.timeout())
	case "channel":
		_, err = c.OpenChannel(ctx, t.Name, t.timeout())
	case "name":
		l, got := w.lease(ctx, t, t.Name, false)
		if err = got; err == nil {
			err = l.Release(false)
		}
	default:
		err = fmt.Errorf("what is %q? expected service, pool, name or channel", t.What)
	}
	return &Answer{Waited: time.Since(start).Seconds()}, err
}
