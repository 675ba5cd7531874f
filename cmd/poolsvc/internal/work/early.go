package work

import (
	"context"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
)

// wait waits for the service, a pool, a channel or a name, and returns how long it waited.
func (w *Worker) wait(ctx context.Context, t *Task) (*Answer, error) {
	start := time.Now()
	var err error
	switch t.What {
	case "service":
		_, err = within(ctx, w, t.timeout(), func(_ context.Context, c *bridge.Client) (*bridge.Client, error) { return c, nil })
	case "pool":
		_, err = w.pool(ctx, t.Name, t.timeout())
	case "channel":
		_, err = w.channel(ctx, t.Name, t.timeout())
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
