// Command poolsvc runs the service that owns GPU memory and lends it to other processes. Its other commands show and change a running
// service, check the machine, and measure speed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/program"
)

var version = program.Version()

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, errReported) {
			report(os.Stderr, err)
		}
		os.Exit(exitStatus(err))
	}
}

// report prints an error. Its text may have names that clients chose.
func report(w io.Writer, err error) { fmt.Fprintln(display.Safe(w), "poolsvc:", sentence(err)) }

// sentence returns the text of an error in a form that people can read. It leaves out what only programs need: if the error comes from the
// service, the names of the request and the error; if the service has ended, what that means for leases.
func sentence(err error) string {
	text := err.Error()
	if errors.Is(err, bridge.ErrDisconnected) {
		text, _, _ = strings.Cut(text, "; the session's leases")
	}
	if remote, ok := errors.AsType[*bridge.RemoteError](err); ok {
		message := strings.TrimPrefix(remote.Message, fmt.Sprint(remote.Unwrap(), ": "))
		text = strings.Replace(text, remote.Error(), message, 1)
	}
	return text
}

// exitStatus returns the exit status of the program for an error.
func exitStatus(err error) int {
	if _, misused := errors.AsType[*usageError](err); misused {
		return 2
	}
	if child, guarded := errors.AsType[*childError](err); guarded {
		return child.ExitCode()
	}
	if errors.Is(err, seqpacket.ErrInUse) {
		return 3
	}
	if _, unheard := errors.AsType[*socketError](err); unheard {
		return 4
	}
	return 1
}
