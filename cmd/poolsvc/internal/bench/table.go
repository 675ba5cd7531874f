package bench

import (
	"fmt"
	"io"
	"strconv"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

func printHead(w io.Writer) {
	fmt.Fprintf(w, "%-36s %-7s %10s %11s %11s %11s %11s  %s\n", "workload", "kind", "size", "p50 µs", "p99 µs", "p99.9 µs", "a second", "system")
}

// printLoad warns who measures a machine that works for others.
func printLoad(w io.Writer, load float64, cpus int) {
	if 2*load > float64(cpus) {
		fmt.Fprintf(w, "This machine is busy: %.1f programs ran on %d CPUs in the last minute. The figures are those of a busy machine.\n", load, cpus)
	}
}

// printPython says what measures in Python.
func printPython(w io.Writer, m verify.Machine) {
	compiled := "not compiled"
	if m.Compiled {
		compiled = "compiled"
	}
	fmt.Fprintf(w, "Python %s, poolbridge %s, %s\n", m.Python, m.Packages["poolbridge"], compiled)
}

// print writes one line for a person.
func (r Result) print(w io.Writer) {
	fmt.Fprintf(w, "%-36s %-7s %10s %11s %11s %11s %11.0f  %s\n",
		r.Workload, r.Kind, sizeOf(r.Bytes), number(r.P50), number(r.P99), number(r.P999), r.PerSecond, r.System)
}

func mebibytes(n uint64) float64 { return float64(n) / (1 << 20) }

func (p Footprint) print(w io.Writer) {
	driver := ""
	if p.DriverBytes > 0 {
		driver = fmt.Sprintf(" besides %.1f that CUDA takes in a process with as many blocks and nothing else", mebibytes(p.DriverBytes))
	}
	fmt.Fprintf(w, "  service %s with %d buffers and %d sessions: %.1f MiB of its own%s, %.3f ms of CPU in %.2f s\n",
		p.State, p.Buffers, p.Sessions, mebibytes(p.OwnBytes), driver, p.CPUSeconds*1e3, p.Seconds)
}

func (r Ratio) print(w io.Writer) {
	verdict := "MISSED"
	switch {
	case r.Target == 0:
		verdict = "" // no target: only to know
	case r.Met:
		verdict = "met"
	}
	target := ""
	if r.Target > 0 {
		target = fmt.Sprintf("at least %g", r.Target)
	}
	fmt.Fprintf(w, "%-36s %-7s %10s %9.2f × %-14s %-7s against %s\n", r.Workload, r.Kind, sizeOf(r.Bytes), r.Ratio, target, verdict, r.Against)
}

// PrintRatios writes the ratios for a person.
func (r *Report) PrintRatios(w io.Writer) {
	if r.Machine.Simulated {
		fmt.Fprintln(w, "SIMULATED: no real GPU was used, and times on memory of kind device mean nothing.")
	}
	for _, ratio := range r.Ratios {
		ratio.print(w)
	}
}

func number(us *float64) string {
	if us == nil {
		return ""
	}
	return strconv.FormatFloat(*us, 'f', 1, 64)
}

// sizeOf is a number of bytes for a person.
func sizeOf(bytes uint64) string {
	for _, unit := range []struct {
		name  string
		shift uint
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if bytes >= 1<<unit.shift && bytes&(1<<unit.shift-1) == 0 {
			return fmt.Sprintf("%d %s", bytes>>unit.shift, unit.name)
		}
	}
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%d B", bytes)
}
