package bench

import (
	"math"
	"slices"
	"time"
)

// Durations are measurements of one operation. Elapsed is the time of all operations, including the time between them.
type Durations struct {
	Each    []time.Duration
	Elapsed time.Duration
	// If Each has only some of the operations, Count is the number of all operations.
	Count int
}

// enoughForP999 is the least number of measurements for which the 99.9th percentile is meaningful.
const enoughForP999 = 1000

// Percentile returns the shortest measurement m with this property: at least the given share of all measurements is not longer than m. If
// there are no measurements, Percentile returns 0.
func (d Durations) Percentile(share float64) time.Duration {
	if len(d.Each) == 0 {
		return 0
	}
	ordered := slices.Sorted(slices.Values(d.Each))
	return ordered[max(int(math.Ceil(share*float64(len(ordered)))), 1)-1]
}

// operations returns the number of all operations.
func (d Durations) operations() int { return max(d.Count, len(d.Each)) }

// and returns the measurements of two rounds together.
func (d Durations) and(more Durations) Durations {
	return Durations{Each: append(d.Each, more.Each...), Elapsed: d.Elapsed + more.Elapsed, Count: d.operations() + more.operations()}
}

// result returns the measurements as a line of the table.
func (d Durations) result(workload, kind string, bytes uint64) Result {
	r := Result{Workload: workload, Kind: kind, Bytes: bytes, System: ours, Samples: d.operations()}
	if d.Elapsed > 0 {
		r.PerSecond = float64(r.Samples) / d.Elapsed.Seconds()
	}
	if len(d.Each) > 0 {
		r.P50, r.P99 = micros(d.Percentile(0.5)), micros(d.Percentile(0.99))
	}
	if len(d.Each) >= enoughForP999 {
		r.P999 = micros(d.Percentile(0.999))
	}
	return r
}

func micros(d time.Duration) *float64 {
	us := float64(d) / float64(time.Microsecond)
	return &us
}

// stopwatch collects the measurements of an operation, until there are enough.
type stopwatch struct {
	limit   time.Duration
	begun   time.Time
	counted time.Time // when the warm-up ended and counting began
	rounds  int
	taken   Durations
}

// These limit how many rounds a stopwatch has. In each round, the operation runs once. The rounds of the warm-up are not measured.
const (
	warmUpRounds = 100
	leastSamples = 5
	mostSamples  = 50_000
)

func newStopwatch(limit time.Duration) *stopwatch {
	now := time.Now()
	return &stopwatch{limit: limit, begun: now, counted: now}
}

// more reports whether to run another round. First come rounds that warm up and are not counted: at least one, and more until a quarter of
// s.limit has passed or warmUpRounds rounds have. Then rounds are counted.
func (s *stopwatch) more() bool {
	now := time.Now()
	if s.rounds <= warmUpRounds && (s.rounds <= 1 || now.Sub(s.begun) < s.limit/4) {
		s.counted = now
		s.taken.Each = s.taken.Each[:0]
		return true
	}
	n := len(s.taken.Each)
	return n < leastSamples || n < mostSamples && now.Sub(s.counted) < s.limit
}

// took adds the duration of one round.
func (s *stopwatch) took(d time.Duration) {
	s.rounds++
	s.taken.Each = append(s.taken.Each, d)
}

// durations returns the measurements without the warm-up.
func (s *stopwatch) durations() Durations {
	s.taken.Elapsed = time.Since(s.counted)
	return s.taken
}
