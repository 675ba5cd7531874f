// Package metrics exports the state of a service and its counters to Prometheus.
package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// Source is a service.
type Source interface {
	Stats() mempool.ServiceStats
	Flows() []service.Flow
	Counts() mempool.Counts
}

// gauge is one number that describes a T.
type gauge[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(T) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("poolbridge_"+name, help, labels, nil)
}

// The labels gpu and UUID have the same names as in NVIDIA's DCGM exporter. So a Prometheus query can join the series
// of DCGM with the series of poolbridge.
var poolLabels = []string{"pool", "kind", "gpu", "UUID"}

func poolBytes(name, help string, of func(mempool.PoolStats) uint64) gauge[mempool.PoolStats] {
	return gauge[mempool.PoolStats]{describe("pool_"+name, help, poolLabels...), prometheus.GaugeValue, func(p mempool.PoolStats) float64 { return float64(of(p)) }}
}

var pools = []gauge[mempool.PoolStats]{
	poolBytes("max_bytes", "Most bytes that the blocks of the pool may take.", func(p mempool.PoolStats) uint64 { return p.Pool.MaxBytes }),
	poolBytes("reserved_bytes", "Bytes of all blocks: what is allocated from the GPU or the machine.", func(p mempool.PoolStats) uint64 { return p.Reserved }),
	poolBytes("leased_bytes", "Bytes of the blocks that buffers use.", func(p mempool.PoolStats) uint64 { return p.Leased }),
	poolBytes("used_bytes", "Bytes of the buffers in those blocks.", func(p mempool.PoolStats) uint64 { return p.Used }),
	poolBytes("cached_bytes", "Bytes of blocks that are free for use.", func(p mempool.PoolStats) uint64 { return p.Cached }),
	poolBytes("held_bytes", "Bytes of free blocks that are being recalled, freed, or wait for a process to end.", func(p mempool.PoolStats) uint64 { return p.Held }),
	poolBytes("blocks", "Blocks of the pool.", func(p mempool.PoolStats) uint64 { return uint64(p.Blocks) }),
}

var totals = []gauge[mempool.ServiceStats]{
	{describe("sessions", "Sessions that have not ended."), prometheus.GaugeValue, func(s mempool.ServiceStats) float64 { return float64(s.Sessions) }},
	{describe("leases", "Leases on buffers."), prometheus.GaugeValue, func(s mempool.ServiceStats) float64 { return float64(s.Leases) }},
	{describe("buffers", "Buffers."), prometheus.GaugeValue, func(s mempool.ServiceStats) float64 { return float64(s.Buffers) }},
	{describe("names", "Names under which buffers are published."), prometheus.GaugeValue, func(s mempool.ServiceStats) float64 { return float64(s.Names) }},
	{describe("guarded", "1 if another service takes over when this one dies, else 0."), prometheus.GaugeValue, func(s mempool.ServiceStats) float64 {
		if s.Guard == mempool.GuardWatches {
			return 1
		}
		return 0
	}},
	{describe("takeovers_total", "How often services have taken over from one that died."), prometheus.CounterValue,
		func(s mempool.ServiceStats) float64 { return float64(s.Takeovers) }},
}

// The labels mode and full of a channel say what happens when the channel is full.
var channelLabels = []string{"channel", "pool", "mode", "full"}

func ofChannel(name, help string, kind prometheus.ValueType, of func(service.Flow) float64) gauge[service.Flow] {
	return gauge[service.Flow]{describe("channel_"+name, help, channelLabels...), kind, of}
}

var channels = []gauge[service.Flow]{
	ofChannel("frames_total", "Frames that were published.", prometheus.CounterValue, func(ch service.Flow) float64 { return float64(ch.Published) }),
	ofChannel("dropped_frames_total", "Frames that consumers missed because they were behind; of a queue, frames that no consumer got.",
		prometheus.CounterValue, func(ch service.Flow) float64 { return float64(ch.Dropped) }),
	ofChannel("used_frames", "Places of the channel that are taken up: if that is the capacity, the next frame waits, fails, or drops another.",
		prometheus.GaugeValue, func(ch service.Flow) float64 { return float64(ch.Used) }),
	ofChannel("waiting_frames", "In a broadcast, frames that the slowest consumer has not taken; in a queue, frames that are not acknowledged.",
		prometheus.GaugeValue, func(ch service.Flow) float64 { return float64(ch.Waiting) }),
	ofChannel("blocked_seconds", "How long producers have waited for room because consumers are behind; 0: they do not wait.", prometheus.GaugeValue, blocked),
	ofChannel("capacity_frames", "Frames that the channel keeps.", prometheus.GaugeValue, func(ch service.Flow) float64 { return float64(ch.Capacity) }),
	ofChannel("producers", "Producers that take part.", prometheus.GaugeValue, func(ch service.Flow) float64 { return float64(ch.Producers) }),
	ofChannel("consumers", "Consumers that take part.", prometheus.GaugeValue, func(ch service.Flow) float64 { return float64(ch.Consumers) }),
}

func blocked(ch service.Flow) float64 {
	if ch.BlockedSince.IsZero() {
		return 0
	}
	return time.Since(ch.BlockedSince).Seconds()
}

// lag has one series for each consumer of a broadcast channel, if the seat number of the consumer is less than maxSubscribers. A new
// consumer gets the seat of a consumer that has left, so each channel has at most maxSubscribers series.
var lag = describe("channel_subscriber_lag_frames", "Frames that a consumer of a broadcast has not taken; subscriber is its seat in the channel.",
	append(channelLabels, "subscriber")...)

const maxSubscribers = 64

// These are the Prometheus series about the whole service. `waiting` is the number of requests that wait now. All other series count from
// the start of the service.
var (
	events   = describe("events_total", "Events, by kind, including those that the history does not have one by one.", "kind")
	endings  = describe("sessions_ended_total", "Sessions that ended, by how they ended: left, lost, error, closed, shutdown.", "how")
	reclaims = describe("reclaim_duration_seconds", "How long memory was held for the processes of sessions that had ended.")
	waiting  = describe("waiting_requests", "Requests that wait, by what they wait for.", "for")
	calls    = describe("driver_calls_total", "Calls of the driver or the system for pools and blocks.", "call")
	failures = describe("driver_errors_total", "Of these calls, those that failed.", "call")
)

// collectCounts sends the values of the counters.
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

// each sends one series for each entry of counts.
func each[K ~string, N int | uint64](to chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, counts map[K]N) {
	for label, n := range counts {
		to <- prometheus.MustNewConstMetric(desc, kind, float64(n), string(label))
	}
}

// Collector reads the values from a service at each scrape. It stores no values between scrapes.
type Collector struct{ Source Source }

// Describe sends the descriptions of all series to the Go channel `to`.
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
	for _, desc := range []*prometheus.Desc{lag, events, endings, reclaims, waiting, calls, failures} {
		to <- desc
	}
}

// Collect reads the values from the service, and sends them to the Go channel `to`.
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
	for i := len(stats.Pools) - 1; i >= 0; i-- { // newest pool first: an older pool with the same name is being destroyed
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
	for _, ch := range c.Source.Flows() {
		if ch.Closed {
			continue // another channel may have the same name
		}
		labels := []string{ch.Name, names[ch.Pool], string(ch.Mode), string(ch.Full)}
		for _, g := range channels {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.of(ch), labels...)
		}
		if ch.Mode != mempool.Broadcast {
			continue
		}
		for _, m := range ch.Members {
			if m.Role == service.Consumer && m.Seat < maxSubscribers {
				to <- prometheus.MustNewConstMetric(lag, prometheus.GaugeValue, float64(m.Behind), append(labels, strconv.Itoa(m.Seat))...)
			}
		}
	}
}
