package bench

import (
	"math"
	"slices"
	"time"
)

// Durations are measurements of one thing, and how long all of them took with what lay between them.
type Durations struct {
	Each    []time.Duration
	Elapsed time.Duration
	// Count is how many were done, if more than were measured.
	Count int
}

// enoughForP999 is below how many measurements the slowest in a thousand says nothing.
const enoughForP999 = 1000

// Percentile is the smallest measurement that at least share of all do not exceed; 0 where there is none.
func (d Durations) Percentile(share float64) time.Duration {
	if len(d.Each) == 0 {
		return 0
	}
	ordered := slices.Sorted(slices.Values(d.Each))
	return ordered[max(int(math.Ceil(share*float64(len(ordered)))), 1)-1]
}

// result is the line of the table that d makes.
func (d Durations) result(workload, kind string, bytes uint64, system string) Result {
	r := Result{Workload: workload, Kind: kind, Bytes: bytes, System: system, Samples: max(d.Count, len(d.Each))}
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

// stopwatch takes measurements until there are enough.
type stopwatch struct {
	limit   time.Duration
	begun   time.Time
	counted time.Time // when the warm-up was over
	rounds  int
	taken   Durations
}

// How a stopwatch decides.
const (
	warmUpRounds = 100
	leastSamples = 5
	mostSamples  = 50_000
)

func newStopwatch(limit time.Duration) *stopwatch {
	now := time.Now()
	return &stopwatch{limit: limit, begun: now, counted: now}
}

// more says whether another round is wanted. What is slow is warm after its first round.
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

// took notes one round.
func (s *stopwatch) took(d time.Duration) {
	s.rounds++
	s.taken.Each = append(s.taken.Each, d)
}

// durations are what was measured.
func (s *stopwatch) durations() Durations {
	s.taken.Elapsed = time.Since(s.counted)
	return s.taken
}
