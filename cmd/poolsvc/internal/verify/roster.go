package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// goConsumer is the name of the consumer that is a Go process.
const goConsumer = "go"

// roster says which consumers there are: this program in another process, and the libraries of the Python interpreter.
type roster struct{ work.Probe }

// probe asks the Python interpreter which libraries it has.
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

// consumersOf returns the consumers that can use memory of a kind. The first is Go.
func (p *roster) consumersOf(kind mempool.Kind) []string {
	return append([]string{goConsumer}, p.Consumers[string(kind)]...)
}

// missing returns why the interpreter's other libraries cannot use memory of a kind, or "".
func (p *roster) missing(kind mempool.Kind) string {
	if why := p.Missing[string(kind)]; why != "" {
		return why
	}
	if len(p.Consumers[string(kind)]) == 0 {
		return "no library for it is installed"
	}
	return ""
}

// preferred returns Go, and the best library in Python if there is one.
func preferred(consumers []string) []string { return consumers[:min(2, len(consumers))] }
