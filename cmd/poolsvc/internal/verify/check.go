package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/mempool"
)

// check is one thing to prove, for one kind of memory.
type check struct {
	name string
	run  func(context.Context, *scene) error
}

// skip is the error of a check that cannot run here; it says why.
type skip struct{ reason string }

func (s *skip) Error() string { return s.reason }

func skipf(format string, args ...any) error { return &skip{fmt.Sprintf(format, args...)} }

// checksOf lists the checks of a kind, for the consumers that the workers' interpreter has.
func checksOf(kind mempool.Kind, o Options, p *Probe) []check {
	var checks []check
	for _, consumer := range p.consumersOf(kind) {
		checks = append(checks, check{"round-trip/" + consumer, func(ctx context.Context, s *scene) error {
			return roundTrip(ctx, s, consumer, o.Elements)
		}})
	}
	if len(checks) == 0 {
		checks = append(checks, check{"round-trip", func(context.Context, *scene) error {
			return skipf("%s has no package that can use memory of kind %q: %s", o.Python, kind, p.missing(kind))
		}})
		return checks
	}
	consumer := p.consumersOf(kind)[0]
	checks = append(checks, check{fmt.Sprintf("%d-workers/%s", o.Workers, consumer), func(ctx context.Context, s *scene) error {
		return manyWorkers(ctx, s, consumer, o.Elements, o.Workers)
	}})
	large := o.LargeBytes / elementBytes
	if kind == mempool.Device && large > 0 {
		checks = append(checks, check{"large/" + consumer, func(ctx context.Context, s *scene) error {
			return roundTrip(ctx, s, consumer, large)
		}})
	}
	return checks
}

// resultOf says how a check ended from what it returned.
func resultOf(err error) (Status, string) {
	if err == nil {
		return Passed, ""
	}
	if s, ok := errors.AsType[*skip](err); ok {
		return Skipped, s.reason
	}
	return Failed, err.Error()
}
