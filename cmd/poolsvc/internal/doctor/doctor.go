package doctor

import (
	"context"
	"slices"

	"github.com/poolbridge/poolbridge/mempool"
)

// Options says what to examine.
type Options struct {
	// Python is the interpreter to examine.
	Python string
	// Socket is the path on which the service should listen.
	Socket string
	// Kinds are the kinds of memory that must work. If there are none, every kind must work if the machine has a GPU, and else kind host.
	Kinds []mempool.Kind
}

// asksFor says whether a kind of memory must work.
func (o Options) asksFor(k mempool.Kind) bool {
	return len(o.Kinds) == 0 || slices.Contains(o.Kinds, k)
}

// Examine examines the machine, the interpreter and the socket, and returns what it finds. It changes nothing.
func Examine(ctx context.Context, o Options) []Finding {
	c := chart{asked: o}
	if devices := c.driver(); len(devices) > 0 {
		for _, d := range devices {
			c.device(d)
		}
		c.peers(devices)
		c.kinds(devices)
		c.nvml()
		c.deviceFiles()
	}
	c.kernel()
	c.namespaces()
	c.sharedMemory()
	c.limits()
	c.python(ctx, o.Python)
	c.socket(ctx, o.Socket)
	return c.findings
}
