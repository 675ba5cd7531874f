package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and of its protocol",
		Args:  arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(c.OutOrStdout(), map[string]any{"version": version, "go": runtime.Version(),
					"protocol": wire.Version, "kinds": mempool.Kinds()})
			}
			_, err := fmt.Fprint(c.OutOrStdout(), versionLine())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func versionLine() string {
	return fmt.Sprintf("poolsvc %s (%s), protocol %d, kinds %v\n", version, runtime.Version(), wire.Version, mempool.Kinds())
}
