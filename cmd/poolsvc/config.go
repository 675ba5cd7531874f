package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/mempool"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, and show what a service would do",
		Long:  `Check a configuration file, and show what a service would do. docs/deploying.md describes the file.`,
		Args:  arguments(0, 0),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigCheck(), newConfigShow())
	return c
}

func newConfigCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say what is wrong in a configuration file",
		Long: `Say what is wrong in a configuration file: one line of output for each mistake, with its line and the reason. Without FILE it checks
$POOLBRIDGE_CONFIG. It does not check a setting against another one that is wrong.

The exit status is 0 if nothing is wrong, else 1. Only the service, when it starts, checks that the machine has the memory and GPUs for the pools.`,
		Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			path := os.Getenv("POOLBRIDGE_CONFIG")
			if len(args) > 0 {
				path = args[0]
			}
			if path == "" {
				return misused(c, "no file to check: name one, or set POOLBRIDGE_CONFIG")
			}
			p := newPlan()
			err := p.read(path)
			if err == nil {
				err = p.check()
			}
			if err != nil {
				fmt.Fprintln(c.OutOrStdout(), err)
				return errReported
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: nothing is wrong; pools: %d\n", path, len(p.pools))
			return err
		},
	}
}

func newConfigShow() *cobra.Command {
	c := &cobra.Command{
		Use:   "show",
		Short: "Show what poolsvc serve would do with the same flags",
		Long:  `Show what poolsvc serve would do with the same flags, environment and configuration file, and where each setting comes from.`,
		Args:  arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := resolve(c.Flags(), nil)
			if err != nil {
				return err
			}
			return p.show(c)
		},
	}
	planFlags(c.Flags())
	return c
}

// show prints the settings of the plan.
func (p *plan) show(c *cobra.Command) error {
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	row := func(key, value, from string) {
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", key, value, from)
	}
	for _, s := range settings() {
		if s.show != nil {
			row(s.key, s.show(p), p.from[s.flag].String())
		}
	}
	for _, one := range p.limits.list() {
		name, n, _ := strings.Cut(one, "=")
		row("limits."+name, n, p.from["limit "+name].String())
	}
	for _, spec := range p.pools {
		row("pools", formatPool(spec), p.from["pool "+spec.Name].String())
	}
	return w.Flush()
}

// formatPool returns a pool in the form that --pool accepts.
func formatPool(spec mempool.PoolSpec) string {
	text := fmt.Sprintf("name=%s,kind=%s,max=%s", spec.Name, spec.Kind, compactBytes(spec.MaxBytes))
	if spec.Device != "" {
		text += ",device=" + spec.Device
	}
	if spec.SessionBytes > 0 {
		text += ",session=" + compactBytes(spec.SessionBytes)
	}
	if spec.UserBytes > 0 {
		text += ",user=" + compactBytes(spec.UserBytes)
	}
	for _, id := range spec.Access.UIDs {
		text += fmt.Sprintf(",uid=%d", id)
	}
	for _, id := range spec.Access.GIDs {
		text += fmt.Sprintf(",gid=%d", id)
	}
	return text
}

func compactBytes(n uint64) string { return strings.ReplaceAll(formatBytes(n), " ", "") }
