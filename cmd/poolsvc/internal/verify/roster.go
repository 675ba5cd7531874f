package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// The consumer that is a process in Go.
const goConsumer = "go"

// roster is who can consume what: this program in another process, and what the Python interpreter has.
type roster struct{ work.Probe }

// probe asks the Python interpreter what it has.
func probe(ctx context.Context, python string) (*roster, error) {
	w, err := startWorker(ctx, "", python, "-m", "poolbridge.worker")
	if err != nil {
		return nil, fmt.Errorf("%s cannot be started: %w", python, err)
	}
	var p roster
	if err = w.exchange(ctx, work.Task{Task: "probe"}, &p.Probe); err == nil && !p.OK {
		err = errors.New("it cannot say what it has")
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot run poolbridge's workers (is the package installed there?): %w", python, err)
	}
	return &p, w.stop()
}

// consumersOf are those that can use memory of a kind; the first of them is Go.
func (p *roster) consumersOf(kind mempool.Kind) []string {
	return append([]string{goConsumer}, p.Consumers[string(kind)]...)
}

// missing says why others cannot.
func (p *roster) missing(kind mempool.Kind) string {
	if why := p.Missing[string(kind)]; why != "" {
		return why
	}
	if len(p.Consumers[string(kind)]) == 0 {
		return "no library for it is installed"
	}
	return ""
}

// preferred are Go and the library that is best in Python, where there is one.
func preferred(consumers []string) []string { return consumers[:min(2, len(consumers))] }
