package doctor

import (
	"context"
)

// Options says what to examine.
type Options struct {
	// Python is the interpreter to examine.
	Python string
	// Socket is the path on which the service should listen.
	Socket string
}

// Examine examines the machine, the interpreter and the socket, and returns what it finds. It changes nothing.
func Examine(ctx context.Context, o Options) []Finding {
	var c chart
	c.visible()
	devices := c.driver()
	for _, d := range devices {
		c.device(d)
	}
	c.peers(devices)
	c.kinds(devices)
	c.nvml()
	c.deviceFiles()
	c.kernel()
	c.namespaces()
	c.sharedMemory()
	c.limits()
	c.python(ctx, o.Python)
	c.socket(ctx, o.Socket)
	return c.findings
}
