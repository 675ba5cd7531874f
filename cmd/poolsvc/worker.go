package main

import (
	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// newWorker returns the command that `verify` runs as the Go side of its checks.
func newWorker() *cobra.Command {
	w := &verify.Worker{}
	c := &cobra.Command{
		Use:    "worker",
		Short:  "Carry out the tasks of verify, one JSON object a line",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return w.Serve(c.Context(), c.InOrStdin(), c.OutOrStdout())
		},
	}
	socketFlag(c, &w.Socket)
	c.Flags().StringVar(&w.Device, "device", "", "GPU to work on, if it is not the one that has the memory")
	return c
}
