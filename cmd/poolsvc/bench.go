package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/bench"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

func newBench() *cobra.Command {
	o := bench.Options{Alternatives: true}
	var (
		asJSON bool
		kinds  []string
		sizes  []string
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure what sharing memory costs on this machine",
		Long: `Measure transfers, streams, copies, allocations, growth and start-up. The same run measures the alternatives without
poolbridge: queues, shared memory and sockets between two Python processes, each used in its fastest way. Kinds that the machine
lacks are skipped.

Times are medians and percentiles in microseconds; p99.9 needs 1,000 measurements. Transfers are measured in three ways: with arrays
that are made once for a block, with a new array and "a lease each", and "by name". The service runs in its own process.
Python streams have one Python process that sends and others that receive. The same streams with iceoryx2 are measured if that package
is installed. Five rounds of each are measured in turn; the results are the medians of the rounds.
With "--only engines", arrays go from one actor of Ray to another and from one worker of Dask to another, on one node: in place, and by
the engine alone. Ray and Dask are each skipped if they are not installed for that Python.

The ratios say how many times better poolbridge is than an alternative. A stream that is slower than single transfers of the same system
is marked as doubtful and not compared. On a machine that does other work, the figures change from run to run.`,
		Example: `  poolsvc bench
  poolsvc bench --kind host --only transfer --size 1MiB
  poolsvc bench --python ~/venv/bin/python --json > bench.json`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Kinds, err = kindsOf(kinds); err != nil {
				return err
			}
			for _, text := range sizes {
				var size byteSize
				if err := size.Set(text); err != nil {
					return err
				}
				o.Sizes = append(o.Sizes, uint64(size))
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Poolsvc = self
			o.Progress = display.NewProgress(c.OutOrStdout())
			if asJSON {
				o.Progress = display.NewProgress(c.ErrOrStderr())
			}
			report, err := bench.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), report)
			}
			fmt.Fprintln(c.OutOrStdout())
			report.PrintRatios(c.OutOrStdout())
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&o.Python, "python", defaultPython(), "the workers' Python interpreter, with the poolbridge package")
	f.StringVar(&o.Device, "device", "0", "GPU to use, an ordinal or a UUID")
	f.StringSliceVar(&kinds, "kind", nil, fmt.Sprintf("kinds of memory, of %v (default host,device)", mempool.Kinds()))
	f.StringSliceVar(&o.Only, "only", nil, "workloads, of "+strings.Join(bench.Workloads(), ", ")+" (default all but engines and spinning)")
	completeKinds(c)
	complete(c, "only", bench.Workloads()...)
	f.StringSliceVar(&sizes, "size", nil, "sizes of buffers that are transferred (default 4KiB,64KiB,1MiB,16MiB,64MiB,1GiB)")
	f.DurationVar(&o.Time, "time", time.Second, "time of one measurement, about")
	f.IntVar(&o.MaxBuffers, "max-buffers", 100_000, "most live buffers when growth is measured")
	f.IntVar(&o.MaxSessions, "max-sessions", 500, "most sessions when growth is measured")
	f.IntVar(&o.MaxConsumers, "max-consumers", 8, "most consumers of a stream")
	f.BoolVar(&o.Alternatives, "alternatives", true, "measure the alternatives without poolbridge too")
	f.BoolVar(&asJSON, "json", false, "print JSON; progress goes to standard error")
	return c
}

// newBenchConsumer returns the command that `poolsvc bench` runs as a consumer.
func newBenchConsumer() *cobra.Command {
	return &cobra.Command{
		Use: bench.ConsumeCommand + " SOCKET CHANNEL SPINS", Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			spins, err := strconv.ParseBool(args[2])
			if err != nil {
				return err
			}
			return bench.Consume(c.Context(), args[0], args[1], spins, c.OutOrStdout())
		},
	}
}

// newBenchBare returns the command that `poolsvc bench` runs as the process without poolbridge.
func newBenchBare() *cobra.Command {
	return &cobra.Command{
		Use: bench.BareCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.Bare(c.Context(), c.InOrStdin(), c.OutOrStdout())
		},
	}
}
