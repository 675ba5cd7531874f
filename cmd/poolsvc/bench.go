package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/bench"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
)

func newBench() *cobra.Command {
	o := bench.Options{}
	var (
		asJSON bool
		kinds  []string
		sizes  []string
		check  string
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure what sharing memory costs on this machine",
		Long: `Measure transfers, streams, copies, allocations, growth and start-up. Kinds of memory that the machine lacks are skipped.

With --check, say what got worse or better since an earlier run on this machine: a figure whose best round differs by more than 10 %, and
by more than the median round of either run is from its best, in three measurements. The exit status is 1 if something got worse, and
2 if FILE is no report of this machine. Other versions of the kernel, the driver, Python and packages are only named.

Times are medians and percentiles in microseconds; p99.9 needs 1,000 measurements. Transfers are measured in three ways: with arrays
that are made once for a block, with a new array and "a lease each", and "by name". The service runs in its own process.

On a machine that does other work, the figures change from run to run. benchmarks/run.py in a checkout of poolbridge measures other
systems beside poolbridge.`,
		Example: `  poolsvc bench
  poolsvc bench --kind host --only transfer --size 1MiB
  poolsvc bench --python ~/venv/bin/python --json > bench.json
  poolsvc bench --check bench.json`,
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
			if check != "" {
				if o.Before, err = bench.Read(check); err != nil {
					return unusable(err)
				}
			}
			o.Progress = display.NewProgress(c.OutOrStdout())
			if asJSON {
				o.Progress = display.NewProgress(c.ErrOrStderr())
			}
			report, err := bench.Run(c.Context(), o)
			if err != nil {
				return unusable(err)
			}
			if asJSON {
				err = writeJSON(c.OutOrStdout(), report)
			} else if report.Check != nil {
				report.Check.Print(o.Progress)
			}
			if err == nil && report.Check.Worse() {
				err = errReported
			}
			if err != nil || asJSON {
				return err
			}
			if report.Machine.Simulated {
				fmt.Fprintln(c.OutOrStdout(), "SIMULATED: no real GPU was used, and times on memory of kind device mean nothing.")
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&o.Python, "python", defaultPython(), "the workers' Python interpreter, with the poolbridge package")
	f.StringVar(&o.Device, "device", "0", "GPU to use, an ordinal or a UUID")
	f.StringSliceVar(&kinds, "kind", nil, fmt.Sprintf("kinds of memory, of %v (default host,device)", mempool.Kinds()))
	f.StringSliceVar(&o.Only, "only", nil, "workloads, of "+strings.Join(bench.Workloads(), ", ")+" (default all)")
	completeKinds(c)
	complete(c, "only", bench.Workloads()...)
	f.StringSliceVar(&sizes, "size", nil, "sizes of buffers that are transferred (default 4KiB,64KiB,1MiB,16MiB,64MiB,1GiB)")
	f.DurationVar(&o.Time, "time", time.Second, "time of one measurement, about, in all rounds together")
	f.IntVar(&o.Rounds, "rounds", 5, "how often everything is measured, in turn")
	f.IntVar(&o.MaxBuffers, "max-buffers", 100_000, "most live buffers when growth is measured")
	f.IntVar(&o.MaxSessions, "max-sessions", 500, "most sessions when growth is measured")
	f.IntSliceVar(&o.Consumers, "consumers", nil, "numbers of consumers of a stream, in ascending order; some streams have only 1 (default 1,2,4,8)")
	f.StringVar(&check, "check", "", "a `FILE` that bench --json has written: compare this run with it")
	f.BoolVar(&asJSON, "json", false, "print JSON; progress goes to standard error")
	return c
}

// unusable returns the error of a command line that names a file with which nothing can be compared, and other errors as they are.
func unusable(err error) error {
	if file, ok := errors.AsType[*bench.FileError](err); ok {
		return &usageError{file.Error()}
	}
	return err
}

// newBenchConsumer returns the command that `poolsvc bench` runs as a consumer.
func newBenchConsumer() *cobra.Command {
	return &cobra.Command{
		Use: bench.ConsumeCommand + " SOCKET CHANNEL", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return bench.Consume(c.Context(), args[0], args[1], c.OutOrStdout())
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
