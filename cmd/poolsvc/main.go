// Command poolsvc owns GPU memory and lends it to other processes, and tells whether this machine can do that.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/internal/program"
)

var version = program.Version()

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintln(os.Stderr, "poolsvc:", sentence(err))
		}
		os.Exit(exitStatus(err))
	}
}

// sentence is an error without the names of the operation and of the error that programs know it by: who typed the command knows the one, and the
// service's sentence says the other.
func sentence(err error) string {
	text := err.Error()
	if remote, ok := errors.AsType[*bridge.RemoteError](err); ok {
		message := strings.TrimPrefix(remote.Message, fmt.Sprint(remote.Unwrap(), ": "))
		text = strings.Replace(text, remote.Error(), message, 1)
	}
	return text
}

// exitStatus says to programs what kind of error has ended this one.
func exitStatus(err error) int {
	if _, misused := errors.AsType[*usageError](err); misused {
		return 2
	}
	if errors.Is(err, seqpacket.ErrInUse) {
		return 3
	}
	if _, unheard := errors.AsType[*socketError](err); unheard {
		return 4
	}
	return 1
}
