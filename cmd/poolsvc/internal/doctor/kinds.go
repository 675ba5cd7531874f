package doctor

import (
	"fmt"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// kinds examines which kinds of memory this machine can make, and on which GPUs. Without a GPU, it examines kind host alone.
func (c *chart) kinds(devices []cuda.Device) {
	for _, k := range mempool.Kinds() {
		topic := "kind " + string(k)
		switch {
		case !c.asked.asksFor(k):
			continue
		case k == mempool.Host:
			if err := k.Probe(""); err != nil {
				c.missing(topic, "", "%v", err)
			} else {
				c.ok(topic, "can be made; it needs no GPU")
			}
			continue
		}
		var on []string
		for _, d := range devices {
			if err := k.Probe(fmt.Sprint(d.Ordinal())); err != nil {
				c.missing(topic, "use another kind on this GPU", "%v", err)
			} else {
				on = append(on, fmt.Sprint(d.Ordinal()))
			}
		}
		if len(on) > 0 {
			c.ok(topic, "can be made on GPU %s", strings.Join(on, ", "))
		}
	}
}
