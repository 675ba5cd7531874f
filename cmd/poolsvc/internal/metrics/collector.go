// Package metrics tells Prometheus what a service holds and does.
package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/poolbridge/poolbridge/mempool"
)

// Source is what a service tells of itself.
type Source interface {
	Stats() mempool.Stats
	Channels() []mempool.ChannelStatus
	Counts() mempool.Counts
}

// gauge is one number of a thing T.
type gauge[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(T) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("poolbridge_"+name, help, labels, nil)
}

// The labels gpu and UUID are those of DCGM's exporter, so that its series can be joined.
var poolLabels = []string{"pool", "kind", "gpu", "UUID"}

func poolBytes(name, help string, of func(mempool.PoolStats) uint64) gauge[mempool.PoolStats] {
	return gauge[mempool.PoolStats]{describe("pool_"+name, help, poolLabels...), prometheus.GaugeValue, func(p mempool.PoolStats) float64 { return float64(of(p)) }}
}

var pools = []gauge[mempool.PoolStats]{
	poolBytes("max_bytes", "Most bytes that the blocks of the pool may take.", func(p mempool.PoolStats) uint64 { return p.Pool.MaxBytes }),
	poolBytes("reserved_bytes", "Bytes of all blocks: what is taken from the GPU or the machine.", func(p mempool.PoolStats) uint64 { return p.Reserved }),
	poolBytes("leased_bytes", "Bytes of the blocks that buffers use.", func(p mempool.PoolStats) uint64 { return p.Leased }),
	poolBytes("used_bytes", "Bytes that the buffers in those blocks asked for.", func(p mempool.PoolStats) uint64 { return p.Used }),
	poolBytes("cached_bytes", "Bytes of blocks that are free for use.", func(p mempool.PoolStats) uint64 { return p.Cached }),
	poolBytes("held_bytes", "Bytes of free blocks that are being recalled, freed, or wait for a process to end.", func(p mempool.PoolStats) uint64 { return p.Held }),
	poolBytes("blocks", "Blocks of the pool.", func(p mempool.PoolStats) uint64 { return uint64(p.Blocks) }),
}

var totals = []gauge[mempool.Stats]{
	{describe("sessions", "Sessions that have not ended, the service's own included."), prometheus.GaugeValue, func(s mempool.Stats) float64 { return float64(s.Sessions) }},
	{describe("leases", "Leases on buffers."), prometheus.GaugeValue, func(s mempool.Stats) float64 { return float64(s.Leases) }},
	{describe("buffers", "Buffers."), prometheus.GaugeValue, func(s mempool.Stats) float64 { return float64(s.Buffers) }},
	{describe("names", "Names under which buffers are published."), prometheus.GaugeValue, func(s mempool.Stats) float64 { return float64(s.Names) }},
}

func ofChannel(name, help string, kind prometheus.ValueType, of func(mempool.ChannelStatus) float64) gauge[mempool.ChannelStatus] {
	return gauge[mempool.ChannelStatus]{describe("channel_"+name, help, "channel", "pool"), kind, of}
}

var channels = []gauge[mempool.ChannelStatus]{
	ofChannel("frames_total", "Frames that were published.", prometheus.CounterValue, func(ch mempool.ChannelStatus) float64 { return float64(ch.Published) }),
	ofChannel("waiting_frames", "Frames that the slowest consumer of a broadcast has still to take, or that nobody has acknowledged in a queue.",
		prometheus.GaugeValue, func(ch mempool.ChannelStatus) float64 { return float64(ch.Waiting) }),
	ofChannel("capacity_frames", "Frames that the channel keeps.", prometheus.GaugeValue, func(ch mempool.ChannelStatus) float64 { return float64(ch.Capacity) }),
	ofChannel("producers", "Producers that take part.", prometheus.GaugeValue, func(ch mempool.ChannelStatus) float64 { return float64(ch.Producers) }),
	ofChannel("consumers", "Consumers that take part.", prometheus.GaugeValue, func(ch mempool.ChannelStatus) float64 { return float64(ch.Consumers) }),
}

// What happened in the life of the service so far.
var (
	events   = describe("events_total", "What happened, by kind, what is not in the history one by one included.", "kind")
	endings  = describe("sessions_ended_total", "Sessions that ended, by how: left, lost, error, closed, shutdown.", "how")
	reclaims = describe("reclaim_duration_seconds", "How long memory was held for the processes of sessions that had ended.")
	waiting  = describe("waiting_requests", "Requests that wait, by what they wait for.", "for")
	calls    = describe("driver_calls_total", "What was asked of the driver or the system for pools and blocks.", "call")
	failures = describe("driver_errors_total", "Of these calls, those that failed.", "call")
)

// collectCounts tells of what happened.
func collectCounts(c mempool.Counts, to chan<- prometheus.Metric) {
	each(to, events, prometheus.CounterValue, c.Events)
	each(to, endings, prometheus.CounterValue, c.Endings)
	each(to, waiting, prometheus.GaugeValue, c.Waiting)
	each(to, calls, prometheus.CounterValue, c.DriverCalls)
	each(to, failures, prometheus.CounterValue, c.DriverErrors)
	buckets := make(map[float64]uint64)
	for most, n := range c.Reclaims.Buckets {
		buckets[most.Seconds()] = n
	}
	to <- prometheus.MustNewConstHistogram(reclaims, c.Reclaims.Count, c.Reclaims.Sum.Seconds(), buckets)
}

// each is a series for each entry.
func each[K ~string, N int | uint64](to chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, counts map[K]N) {
	for label, n := range counts {
		to <- prometheus.MustNewConstMetric(desc, kind, float64(n), string(label))
	}
}

// Collector asks a service for each scrape. Nothing is kept, and nothing is counted between scrapes.
type Collector struct{ Source Source }

// Describe names the series.
func (c Collector) Describe(to chan<- *prometheus.Desc) {
	for _, g := range pools {
		to <- g.desc
	}
	for _, g := range totals {
		to <- g.desc
	}
	for _, g := range channels {
		to <- g.desc
	}
	for _, desc := range []*prometheus.Desc{events, endings, reclaims, waiting, calls, failures} {
		to <- desc
	}
}

// Collect asks the service.
func (c Collector) Collect(to chan<- prometheus.Metric) {
	collectCounts(c.Source.Counts(), to)
	stats := c.Source.Stats()
	for _, g := range totals {
		to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.of(stats))
	}
	names := make(map[uint64]string)
	seen := make(map[string]bool)
	for _, p := range stats.Pools {
		names[p.Pool.ID] = p.Pool.Name
	}
	for i := len(stats.Pools) - 1; i >= 0; i-- { // the newest of a name: those before it were destroyed, and something still needs their memory
		p := stats.Pools[i]
		if seen[p.Pool.Name] {
			continue
		}
		seen[p.Pool.Name] = true
		gpu := ""
		if p.Pool.Device != mempool.NoDevice {
			gpu = strconv.Itoa(p.Pool.Device.Ordinal)
		}
		for _, g := range pools {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.of(p), p.Pool.Name, string(p.Pool.Kind), gpu, p.Pool.Device.UUID)
		}
	}
	for _, ch := range c.Source.Channels() {
		if ch.Closed {
			continue // its name may be another's
		}
		for _, g := range channels {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.of(ch), ch.Name, names[ch.Pool])
		}
	}
}
