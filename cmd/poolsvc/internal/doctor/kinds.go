package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// kinds examines which kinds of memory this machine can make, and on which GPUs.
func (c *chart) kinds(devices []cuda.Device) {
	for _, k := range mempool.Kinds() {
		topic := "kind " + string(k)
		if k == mempool.Host {
			if err := k.Probe(""); err != nil {
				c.missing(topic, "", "%v", err)
			} else {
				c.ok(topic, "can be made; it needs no GPU")
			}
			continue
		}
		if len(devices) == 0 {
			c.missing(topic, "see above", "needs a GPU")
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

// visible examines the environment variable that hides or renumbers GPUs.
func (c *chart) visible() {
	list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	switch {
	case !set:
		c.ok("CUDA_VISIBLE_DEVICES", "not set: no GPU is hidden or renumbered")
	case list == "":
		c.missing("CUDA_VISIBLE_DEVICES", "unset it, or list GPUs", "empty: no GPU is seen")
	default:
		c.ok("CUDA_VISIBLE_DEVICES", "%s: ordinals count from there; processes agree on UUIDs, not on ordinals", list)
	}
}
