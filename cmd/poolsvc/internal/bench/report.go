package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/verify"
)

// Result is one line of the table.
type Result struct {
	// Workload, Kind and Bytes say what was measured, System of whom.
	Workload string `json:"workload"`
	Kind     string `json:"kind"`
	Bytes    uint64 `json:"bytes"`
	System   string `json:"system"`
	// P50, P99 and P999 are microseconds, nil where nothing can be said: P999 takes 1,000 measurements.
	P50  *float64 `json:"p50_us"`
	P99  *float64 `json:"p99_us"`
	P999 *float64 `json:"p999_us,omitempty"`
	// PerSecond is how many were done in a second, what lies between them included.
	PerSecond float64 `json:"per_second"`
	Samples   int     `json:"samples"`
	// CPU is how many microseconds of the CPU a frame of a stream took in all processes together, and ServiceShare which share of
	// one CPU the service used; nil where that was not measured.
	CPU          *float64 `json:"cpu_us,omitempty"`
	ServiceShare *float64 `json:"service_share,omitempty"`
}

// Ratio says how many times better poolbridge is than something: at least Target is wanted.
type Ratio struct {
	Workload string  `json:"workload"`
	Kind     string  `json:"kind"`
	Bytes    uint64  `json:"bytes"`
	Against  string  `json:"against"`
	Ratio    float64 `json:"ratio"`
	Target   float64 `json:"target"`
	Met      bool    `json:"met"`
}

// Doubt is about a stream that was slower than one transfer after the other of the same system: it cannot be what that system
// does as its users run it, and nothing is compared with it.
type Doubt struct {
	Workload string `json:"workload"`
	Kind     string `json:"kind"`
	Bytes    uint64 `json:"bytes"`
	System   string `json:"system"`
	// PerSecond is of the stream, OneByOne of transfers, one after the other.
	PerSecond float64 `json:"per_second"`
	OneByOne  float64 `json:"one_by_one"`
}

// Footprint is what a service in a process of its own took.
type Footprint struct {
	Kind     string `json:"kind"`
	State    string `json:"state"` // idle or busy
	Buffers  int    `json:"buffers"`
	Sessions int    `json:"sessions"`
	// RSSBytes is the physical memory of its process without the pools' pages: RssAnon and RssFile of /proc/PID/status.
	// DriverBytes of them are not its own but CUDA's: what a process of the same program that has used no CUDA yet grows by,
	// when it makes a pool of this kind and as many blocks as there are buffers and exports them, as a service does, and
	// nothing else. It is measured in the same run, see Bare, and 0 for memory of the CPU. OwnBytes are the rest, at least 0.
	RSSBytes    uint64 `json:"rss_bytes"`
	DriverBytes uint64 `json:"driver_bytes"`
	OwnBytes    uint64 `json:"own_bytes"`
	// CPUSeconds is what it used of the CPU in Seconds.
	CPUSeconds float64 `json:"cpu_seconds"`
	Seconds    float64 `json:"seconds"`
}

// Skipped is what could not be measured here.
type Skipped struct {
	Workload string `json:"workload,omitempty"`
	Kind     string `json:"kind"`
	System   string `json:"system"`
	Reason   string `json:"reason"`
}

// Report is everything that a run found out.
type Report struct {
	Machine verify.Machine `json:"machine"`
	// Load is how many programs ran or wanted to when the measurements began, by the kernel's average over a minute.
	Load    float64     `json:"load"`
	Results []Result    `json:"results"`
	Doubts  []Doubt     `json:"doubts"`
	Ratios  []Ratio     `json:"ratios"`
	Service []Footprint `json:"service"`
	Skipped []Skipped   `json:"skipped"`
}

// conclude says what the results are worth, and compares them.
func (r *Report) conclude() {
	r.Doubts = []Doubt{}
	for _, stream := range r.Results {
		if stream.Workload != streamName("go-python", 1) {
			continue
		}
		one, there := r.find("transfer", stream.Kind, stream.Bytes, stream.System)
		if there && stream.PerSecond < one.PerSecond {
			r.Doubts = append(r.Doubts, Doubt{Workload: stream.Workload, Kind: stream.Kind, Bytes: stream.Bytes, System: stream.System,
				PerSecond: stream.PerSecond, OneByOne: one.PerSecond})
		}
	}
	r.Ratios = ratios(r)
}

// doubtful says whether a result is not to be compared.
func (r *Report) doubtful(one Result) bool {
	return slices.ContainsFunc(r.Doubts, func(d Doubt) bool {
		return d.Workload == one.Workload && d.Kind == one.Kind && d.Bytes == one.Bytes && d.System == one.System
	})
}

// empty says why there is no result at all.
func (r *Report) empty() error {
	var why []string
	for _, s := range r.Skipped {
		why = append(why, fmt.Sprintf("%s: %s", s.Kind, s.Reason))
	}
	return fmt.Errorf("nothing was measured: %s", strings.Join(why, "; "))
}

// find is the result of one line; false if it was not measured.
func (r *Report) find(workload, kind string, bytes uint64, system string) (Result, bool) {
	for _, one := range r.Results {
		if one.Workload == workload && one.Kind == kind && one.Bytes == bytes && one.System == system {
			return one, true
		}
	}
	return Result{}, false
}
