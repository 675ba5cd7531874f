package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/doctor"
)

func newDoctor() *cobra.Command {
	var (
		o      doctor.Options
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, and what to do about what it lacks",
		Long: `Look at the driver, the GPUs and what they can share, namespaces, limits, the Python packages and the service, and for
each thing that is missing say what to do. It changes nothing, and its exit status is 0 whatever it finds.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			findings := doctor.Examine(c.Context(), o)
			if asJSON {
				return writeJSON(c.OutOrStdout(), map[string]any{"findings": findings})
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, f := range findings {
				fmt.Fprintf(w, "%s\t%s\t%s\n", f.Status, f.Topic, f.Detail)
				if f.Advice != "" {
					fmt.Fprintf(w, "\t\t→ %s\n", f.Advice)
				}
			}
			return w.Flush()
		},
	}
	socketFlag(c, &o.Socket)
	c.Flags().StringVar(&o.Python, "python", defaultPython(), "the workers' Python interpreter")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
