package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
	"github.com/poolbridge/poolbridge/mempool"
)

func newVerify() *cobra.Command {
	o := verify.Options{}
	var (
		asJSON bool
		kinds  []string
		large  = byteSize(1 << 30)
	)
	c := &cobra.Command{
		Use:   "verify",
		Short: "Prove that memory can be shared on this machine",
		Long: `Run a service and check that memory can be shared: Go writes a pattern, workers in other processes check it through zero-copy
arrays and write another, Go checks that one; and much else that people do with shared memory. Every kind of memory that the machine
has is checked with every library that is installed. The output is one line for each check that ends; at the end it repeats those that
failed, and says which were skipped, because they cannot run here, and why.

A check's name is KIND/SCENARIO/CHECK/CONSUMER, such as host/transfer/round-trip/numpy. In a glob of names * stands for anything, also
across /, and ? for one character. The exit status is 0 only if nothing failed and something passed.`,
		Example: `  poolsvc verify
  poolsvc verify --python ~/venv/bin/python --json
  poolsvc verify --kind device --device 1 --elements 1000000
  poolsvc verify --only 'vmm/*' --only '*/round-trip/cupy'`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Kinds, err = kindsOf(kinds); err != nil {
				return err
			}
			o.LargeBytes = uint64(large)
			if !asJSON {
				o.Progress = verify.NewProgress(c.OutOrStdout())
			}
			report, ran := verify.Run(c.Context(), o)
			if ran != nil && (len(report.Checks) == 0 || c.Context().Err() != nil) {
				return ran
			}
			if asJSON {
				err = writeJSON(c.OutOrStdout(), report)
			} else {
				err = summarize(c, report)
			}
			if err = errors.Join(err, ran); err == nil && !report.OK() {
				err = errReported
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Python, "python", defaultPython(), "the workers' Python interpreter, with the poolbridge package")
	f.Uint64Var(&o.Elements, "elements", 1<<20, "float32 elements in the buffer")
	f.StringVar(&o.Device, "device", "0", "GPU to use, an ordinal or a UUID")
	f.Int64Var(&o.Seed, "seed", 100, "seed of Go's pattern: element i is i + seed")
	f.Int64Var(&o.WorkerSeed, "worker-seed", 0, "seed of the workers' pattern: element i is worker-seed - i")
	f.IntVar(&o.Workers, "workers", 10, "workers that check one buffer at once")
	f.IntVar(&o.Parallel, "parallel", 0, "checks that run at the same time, at most, those of order aside; 0: one for each four CPUs, at most 4")
	f.Var(&large, "large", "size of the large buffer that is checked on a GPU; 0 for none")
	f.StringSliceVar(&kinds, "kind", nil, fmt.Sprintf("kinds of memory to check, of %v (default all)", mempool.Kinds()))
	completeKinds(c)
	f.StringSliceVar(&o.Only, "only", nil, "globs of the checks to run: 'vmm/*', '*/transfer/*'")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "time limit of one check")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// defaultPython returns the path of a Python interpreter. If this program is in a checkout of the project, it returns the interpreter of
// the checkout's virtual environment. Otherwise it returns python3 in the folder of this program, because pip installs this program into
// the folder of the interpreter that has the poolbridge package. If this folder has no python3, it returns python3 from the PATH.
func defaultPython() string {
	if self, err := os.Executable(); err == nil {
		folder := filepath.Dir(self)
		for _, python := range []string{filepath.Join(folder, "..", ".venv", "bin", "python"), filepath.Join(folder, "python3")} {
			if _, err := os.Stat(python); err == nil {
				return python
			}
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		return python
	}
	return "python3"
}

func summarize(c *cobra.Command, r *verify.Report) error {
	out := display.Coloured(c.OutOrStdout())
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	r.Summary(c.OutOrStdout())
	m := r.Machine
	on := "host memory only"
	if len(m.Devices) > 0 {
		on = fmt.Sprintf("%d × %s, CUDA %d.%d", len(m.Devices), m.Devices[0].Name, m.CUDA/1000, m.CUDA%1000/10)
	}
	if m.Simulated {
		on += " (SIMULATED: no real GPU was used)"
	}
	counts := fmt.Sprintf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
	if r.OK() {
		counts = display.Good.Render(counts)
	} else {
		counts = display.Bad.Render(counts)
	}
	_, err := fmt.Fprintf(out, "%s\n%s, Linux %s, Python %s, %s\n", counts, on, m.Kernel, m.Python, m.NativeModule())
	if err == nil && r.Failed == 0 && r.Passed == 0 {
		_, err = fmt.Fprintln(out, "nothing could be checked here, so nothing is proved: that is a failure; "+
			"the reasons are above, and `poolsvc doctor` says what to do about them")
	}
	if err == nil && len(m.Devices) == 0 && r.Skipped > 0 {
		_, err = fmt.Fprintln(out, "There is no GPU here. To run the checks of GPU memory on a simulated driver: `make verify-simulated` in a checkout of poolbridge.")
	}
	return err
}
