// Command poolsvc owns GPU memory and lends it to other processes, and tells whether this machine can do that.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/poolbridge/poolbridge/internal/program"
)

var version = program.Version()

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintln(os.Stderr, "poolsvc:", err)
		}
		if _, misused := errors.AsType[*usageError](err); misused {
			os.Exit(2)
		}
		os.Exit(1)
	}
}
