package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/count"
	"github.com/poolbridge/poolbridge/mempool"
)

func newPools() *cobra.Command {
	var v view
	var pool string
	c := &cobra.Command{
		Use:   "pools",
		Short: "Show the pools of a running service",
		Long: `Show the pools of a running service that you may use or destroy, in bytes:

  reserved  allocated from the device or the machine: busy + cached + held
  busy      blocks that buffers use, leased or not ("leased" in JSON)
  used      the sizes of the buffers in them
  cached    blocks that are free for use
  held      free blocks that are being recalled, or wait for a process to end
  yours     what counts for your user, and its limit if the pool has one (user_bytes)

In JSON, sessions counts that of this command, too.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			return v.show(c, func(ctx context.Context, client *bridge.Client, out io.Writer) error {
				stats, err := client.Stats(ctx)
				if err != nil {
					return err
				}
				if c.Flags().Changed("pool") {
					all := slices.Clone(stats.Pools)
					stats.Pools = slices.DeleteFunc(stats.Pools, func(p mempool.PoolStats) bool { return p.Pool.Name != pool })
					if len(stats.Pools) == 0 && v.watch == 0 {
						return unknown("pool", pool, slices.Values(all), func(p mempool.PoolStats) string { return p.Pool.Name })
					}
				}
				if v.json {
					return v.writeJSON(out, poolsJSON(stats))
				}
				return printPools(out, stats)
			})
		},
	}
	v.flags(c)
	c.Flags().StringVar(&pool, "pool", "", "only the pool of this name")
	return c
}

func printPools(out io.Writer, stats mempool.ServiceStats) error {
	w := tabwriter.NewWriter(display.Safe(out), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POOL\tKIND\tDEVICE\tMAX\tRESERVED\tBUSY\tUSED\tCACHED\tHELD\tYOURS\tBLOCKS")
	for _, p := range stats.Pools {
		device := "-"
		if p.Pool.Device != mempool.NoDevice {
			device = fmt.Sprint(p.Pool.Device.Ordinal)
		}
		yours := display.Size(p.User)
		if p.Pool.UserBytes > 0 {
			yours += " of " + display.Size(p.Pool.UserBytes)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", p.Pool.Name, p.Pool.Kind, device, display.Size(p.Pool.MaxBytes),
			display.Size(p.Reserved), display.Size(p.Leased), display.Size(p.Used), display.Size(p.Cached), display.Size(p.Held), yours, p.Blocks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s, %s, %s\n", count.Of(stats.Leases, "lease"), count.Of(stats.Buffers, "buffer"), count.Of(stats.Names, "name"))
	return err
}

func poolsJSON(stats mempool.ServiceStats) any {
	pools := []any{}
	for _, p := range stats.Pools {
		one := jsonPoolStats(p, nil)
		one["name"], one["kind"], one["max_bytes"] = p.Pool.Name, p.Pool.Kind, p.Pool.MaxBytes
		if p.Pool.Device.UUID != "" {
			one["device"] = p.Pool.Device.UUID
		}
		if p.Pool.SessionBytes > 0 {
			one["session_bytes"] = p.Pool.SessionBytes
		}
		if p.Pool.UserBytes > 0 {
			one["user_bytes"] = p.Pool.UserBytes
		}
		pools = append(pools, one)
	}
	out := jsonServiceStats(stats, nil)
	out["pools"] = pools
	return out
}
