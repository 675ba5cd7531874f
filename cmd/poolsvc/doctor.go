package main

import (
	"cmp"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/doctor"
	"github.com/poolbridge/poolbridge/mempool"
)

// verdict returns errReported if a finding has the status Missing. The command has already printed the findings, so the error does not
// repeat them.
func verdict(findings []doctor.Finding) error {
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Status == doctor.Missing }) {
		return errReported
	}
	return nil
}

func newDoctor() *cobra.Command {
	var (
		o      doctor.Options
		kinds  []string
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, and what to do about what it lacks",
		Long: `Check the driver, the GPUs and what they can share, namespaces, limits, the Python packages and the service. For each thing
that is missing, say what to do. It changes nothing. Its exit status is 1 if anything is missing. With --kind, only those kinds
of memory must work; without it, kind host is enough on a machine without a GPU.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Kinds, err = kindsOf(kinds); err != nil {
				return err
			}
			findings := doctor.Examine(c.Context(), o)
			if asJSON {
				return cmp.Or(writeJSON(c.OutOrStdout(), map[string]any{"findings": findings}), verdict(findings))
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, f := range findings {
				fmt.Fprintf(w, "%s\t%s\t%s\n", f.Status, f.Topic, f.Detail)
				if f.Advice != "" {
					fmt.Fprintf(w, "\t\t→ %s\n", f.Advice)
				}
			}
			return cmp.Or(w.Flush(), verdict(findings))
		},
	}
	socketFlag(c, &o.Socket)
	c.Flags().StringVar(&o.Python, "python", defaultPython(), "the workers' Python interpreter")
	c.Flags().StringSliceVar(&kinds, "kind", nil, fmt.Sprintf("kinds of memory that must work, of %v", mempool.Kinds()))
	completeKinds(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
