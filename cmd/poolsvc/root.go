package main

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
)

// errReported says that what went wrong has been shown to the user already.
var errReported = errors.New("reported")

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "poolsvc",
		Short: "GPU memory that one process owns and many use",
		Long: `poolsvc owns memory pools and lends buffers from them to other processes, in Go and in Python, without a copy.

  poolsvc verify    does it work on this machine? (start here)
  poolsvc serve     run the service
  poolsvc pools     what a running service holds
  poolsvc export    save where a buffer is, for programs that are no clients
  poolsvc import    read what such a file names
  poolsvc doctor    what this machine has, and what to do about what it lacks
  poolsvc bench     what it costs here, beside what there is without it

The service listens on $POOLBRIDGE_SOCKET, else on poolbridge/poolsvc.sock below $XDG_RUNTIME_DIR, else on
poolbridge-UID/poolsvc.sock below the temporary directory.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServe(), newVerify(), newPools(), newExport(), newImport(), newDoctor(), newBench(), newBenchConsumer(), newWorker(), newVersion())
	return root
}

// socketFlag adds --socket to a command.
func socketFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "socket", bridge.DefaultSocket(), "path of the service's socket")
}

// writeJSON prints v for machines.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
