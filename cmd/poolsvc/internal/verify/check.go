package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/mempool"
)

// scenario is a way to use shared memory. The name of each check contains its scenario.
type scenario string

// These are the scenarios. The name of a check contains one of these texts.
const (
	transfer scenario = "transfer" // one process writes; another process reads, and answers in the same memory
	mapping  scenario = "mapping"  // sub-ranges, read-only mappings, and several mappings of one allocation
	handle   scenario = "handle"   // handles that travel through any channel, even through a file
	contexts scenario = "contexts" // memory across the life of CUDA contexts
	order    scenario = "order"    // waiting for GPU work of another process
	early    scenario = "early"    // the consumer comes before the producer
	stream   scenario = "stream"   // channels: one buffer after another
)

// check is one property of shared memory to prove, for one kind of memory and one consumer.
type check struct {
	scenario scenario
	name     string
	consumer string
	run      func(context.Context, *scene) error
	// alone returns the role of a worker that only this check uses; nil: the check has no worker of its own.
	alone func(*scene) (role, error)
}

// direction says in which direction the data goes first.
func (c check) direction() string {
	if c.name == producedName {
		return "from-consumer"
	}
	return "to-consumer"
}

// skip is the error of a check that cannot run here. It contains the reason.
type skip struct{ reason string }

func (s *skip) Error() string { return s.reason }

func skipf(format string, args ...any) error { return &skip{fmt.Sprintf(format, args...)} }

// family returns the checks of one group, for a kind of memory and the consumers that can use this kind.
type family func(kind mempool.Kind, consumers []string, o Options) []check

// families lists all families, in the order in which their checks run.
var families = []family{roundTrips, vmmChecks, subRanges, legacyChecks, contextLives, eventChecks, slowChecks, earlyConsumers, streamChecks, outsideChecks, peerChecks}

// checksOf returns the checks of a kind, for the installed consumers.
func checksOf(kind mempool.Kind, o Options, p *roster) []check {
	var checks []check
	for _, f := range families {
		checks = append(checks, f(kind, p.consumersOf(kind), o)...)
	}
	if why := p.missing(kind); why != "" {
		checks = append(checks, check{scenario: transfer, name: "round-trip", consumer: missingOnes, run: func(context.Context, *scene) error {
			return skipf("%s cannot use all memory of kind %q: %s", o.Python, kind, why)
		}})
	}
	return checks
}

// each returns one check for each consumer.
func each(of scenario, name string, consumers []string, run func(ctx context.Context, s *scene, consumer string) error) []check {
	checks := make([]check, 0, len(consumers))
	for _, c := range consumers {
		checks = append(checks, check{scenario: of, name: name, consumer: c, run: func(ctx context.Context, s *scene) error {
			return run(ctx, s, c)
		}})
	}
	return checks
}

// alone lets each check have a worker of its own. of returns the role of this worker.
func alone(checks []check, of func(s *scene, consumer string) (role, error)) []check {
	for i := range checks {
		consumer := checks[i].consumer
		checks[i].alone = func(s *scene) (role, error) { return of(s, consumer) }
	}
	return checks
}

// own returns the role of a worker that uses the library of the check and has no other options.
func own(_ *scene, consumer string) (role, error) { return role{consumer: consumer}, nil }

// onGPU reports whether memory of a kind needs a GPU.
func onGPU(kind mempool.Kind) bool { return kind != mempool.Host }

// resultOf returns the status and the reason for an error that a check returned.
func resultOf(err error) (Status, string) {
	if err == nil {
		return Passed, ""
	}
	if s, ok := errors.AsType[*skip](err); ok {
		return Skipped, s.reason
	}
	return Failed, err.Error()
}
