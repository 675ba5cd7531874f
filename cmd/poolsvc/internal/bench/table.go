package bench

import (
	"fmt"
	"io"
	"strconv"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

func printHead(w io.Writer) {
	fmt.Fprintf(w, "%-36s %-7s %10s %11s %11s %11s %11s\n", "workload", "kind", "size", "p50 µs", "p99 µs", "p99.9 µs", "a second")
}

// busy reports whether other work keeps the machine busy.
func busy(load float64, cpus int) bool { return 2*load > float64(cpus) }

// printLoad prints a warning if other work keeps the machine busy.
func printLoad(w io.Writer, load float64, cpus int) {
	if busy(load, cpus) {
		fmt.Fprintf(w, "This machine is busy: %.1f programs ran on %d CPUs in the last minute. The figures are those of a busy machine.\n", load, cpus)
	}
}

// printPython prints the versions of the Python software that measures.
func printPython(w io.Writer, m verify.Machine) {
	fmt.Fprintf(w, "Python %s, poolbridge %s, %s\n", m.Python, m.Packages["poolbridge"], m.NativeModule())
}

// print writes the result as one line for a person.
func (r Result) print(w io.Writer) {
	fmt.Fprintf(w, "%-36s %-7s %10s %11s %11s %11s %11.0f\n",
		r.Workload, r.Kind, sizeOf(r.Bytes), number(r.P50), number(r.P99), number(r.P999), r.PerSecond)
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

func number(us *float64) string {
	if us == nil {
		return ""
	}
	return strconv.FormatFloat(*us, 'f', 1, 64)
}

// sizeOf returns a number of bytes as a short text.
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
