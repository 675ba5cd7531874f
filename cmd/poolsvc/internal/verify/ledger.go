package verify

import (
	"sync"
	"time"
)

// ledger receives the results of checks that run at the same time, and reports the results in the order of the checks.
type ledger struct {
	checks   []chosen
	report   *Report
	progress *Progress
	possible int // how many checks can run here

	mu       sync.Mutex
	results  []*Result // nil for a check that has not ended
	reported int       // how many results are already in the report
}

// begin shows the first check that has not ended, for a person.
func (l *ledger) begin() {
	if l.reported < len(l.checks) {
		c := l.checks[l.reported]
		l.progress.begin(l.report.Passed+l.report.Failed, l.possible, string(c.kind), c.name)
	}
}

// end stores the result of a check, and reports each result that is next in order.
func (l *ledger) end(check int, note string, took time.Duration, err error) {
	c := l.checks[check]
	r := &Result{Name: c.name, Kind: string(c.kind), Scenario: string(c.scenario), Consumer: c.consumer, Direction: c.direction(),
		Note: note, Seconds: took.Seconds()}
	if r.Status, r.Reason = resultOf(err); r.Status != Passed {
		r.Note = ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results[check] = r
	for ; l.reported < len(l.results) && l.results[l.reported] != nil; l.reported++ {
		l.report.add(*l.results[l.reported])
		l.progress.result(*l.results[l.reported])
	}
	l.begin()
}
