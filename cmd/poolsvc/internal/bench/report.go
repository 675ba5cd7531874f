package bench

import (
	"fmt"
	"strings"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// Result is one line of the results table.
type Result struct {
	// Workload, Kind and Bytes say what was measured. System is the system that carried the data: poolbridge.
	Workload string `json:"workload"`
	Kind     string `json:"kind"`
	Bytes    uint64 `json:"bytes"`
	System   string `json:"system"`
	// P50, P99 and P999 are percentiles of the time of one operation, in microseconds. They are nil if there were too few measurements; P999
	// needs 1,000 measurements.
	P50  *float64 `json:"p50_us"`
	P99  *float64 `json:"p99_us"`
	P999 *float64 `json:"p999_us,omitempty"`
	// PerSecond is the number of operations per second. To compute it, the bench also counts the time between operations.
	PerSecond float64 `json:"per_second"`
	Samples   int     `json:"samples"`
	// Rounds has the figures of each round. Those above are of all rounds together.
	Rounds []Round `json:"rounds,omitempty"`

	all Durations // of all rounds
	of  string    // the workload that measures it
}

// Round has figures of one round. They mean the same as those of Result.
type Round struct {
	P50       *float64 `json:"p50_us"`
	PerSecond float64  `json:"per_second"`
}

// key says what was measured.
func (r Result) key() [4]string { return [4]string{r.Workload, r.Kind, sizeOf(r.Bytes), r.System} }

// Footprint says how much memory and CPU time a service in a separate process used.
type Footprint struct {
	Kind     string `json:"kind"`
	State    string `json:"state"` // idle or busy
	Buffers  int    `json:"buffers"`
	Sessions int    `json:"sessions"`
	// RSSBytes is the physical memory of the service without the pages of the pools: RssAnon and RssFile of /proc/PID/status. DriverBytes
	// is the part of RSSBytes that belongs to CUDA. The bench measures DriverBytes in the same run with a process of the same program, see
	// Bare: DriverBytes is how much that process grows when it makes a pool of this kind, and makes and exports as many blocks as there are
	// buffers. DriverBytes is 0 for memory of the CPU. OwnBytes is the rest of RSSBytes, at least 0.
	RSSBytes    uint64 `json:"rss_bytes"`
	DriverBytes uint64 `json:"driver_bytes"`
	OwnBytes    uint64 `json:"own_bytes"`
	// Seconds is how long the measurement took. CPUSeconds is the CPU time that the service used during the measurement.
	CPUSeconds float64 `json:"cpu_seconds"`
	Seconds    float64 `json:"seconds"`
}

// Skipped is a measurement that this machine could not do.
type Skipped struct {
	Workload string `json:"workload,omitempty"`
	Kind     string `json:"kind"`
	System   string `json:"system"`
	Reason   string `json:"reason"`
}

// Report has all results of a run.
type Report struct {
	Machine verify.Machine `json:"machine"`
	// Version is the version of poolsvc.
	Version string `json:"version"`
	// Load is the load average of the machine over one minute, as the kernel reported it when the measurements began.
	Load    float64     `json:"load"`
	Results []Result    `json:"results"`
	Service []Footprint `json:"service"`
	Skipped []Skipped   `json:"skipped"`
	// Check is how the run differs from that of Options.Before; nil: that is nil.
	Check *Check `json:"check,omitempty"`

	file string // from which Read has read it
}

// empty returns an error that says why the report has no results.
func (r *Report) empty() error {
	var why []string
	for _, s := range r.Skipped {
		why = append(why, fmt.Sprintf("%s: %s", s.Kind, s.Reason))
	}
	return fmt.Errorf("nothing was measured: %s", strings.Join(why, "; "))
}
