package work

import (
	"context"
	"fmt"
	"time"
)

// wait waits for a pool, a name, or with neither for the service, and says how long it took to appear.
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
