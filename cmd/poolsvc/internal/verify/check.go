package verify

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/mempool"
)

// scenario is a way to use shared memory. The name of each check contains its scenario.
type scenario string

// These are the scenarios. Each has a file with its checks and with the tasks of workers for them.
const (
	transfer scenario = "transfer" // one process writes; another process reads, and answers in the same memory
	mapping  scenario = "mapping"  // sub-ranges, read-only mappings, and several mappings of one allocation
	handle   scenario = "handle"   // handles and descriptors that programs send without poolbridge
	contexts scenario = "contexts" // memory across the life of CUDA contexts
	order    scenario = "order"    // waiting for GPU work of another process
	early    scenario = "early"    // the consumer comes before the producer
	stream   scenario = "stream"   // channels: one buffer after another
	survive  scenario = "survive"  // the service dies, and another takes its place
)

// plan is a check, before it is known for which kind of memory and which consumers it runs.
type plan struct {
	scenario scenario
	name     string
	kinds    []mempool.Kind
	choose   func(consumers []string) []string // the consumers among those that can use the kind; Go is the first
	run      func(context.Context, *scene) error
}

var (
	everywhere = mempool.Kinds()
	onGPUs     = slices.DeleteFunc(mempool.Kinds(), func(k mempool.Kind) bool { return !onGPU(k) })
)

// lasting are the kinds whose memory outlives the service, if the service has a guard.
var lasting = slices.DeleteFunc(mempool.Kinds(), func(k mempool.Kind) bool { return k == mempool.Legacy })

// onGPU reports whether memory of a kind needs a GPU.
func onGPU(kind mempool.Kind) bool { return kind != mempool.Host }

func only(kinds ...mempool.Kind) []mempool.Kind { return kinds }

// plans lists all checks, in the order in which they run.
func plans(o Options) []plan {
	list := []plan{
		{transfer, "round-trip", everywhere, all, roundTrip},
		{transfer, producedName, everywhere, all, produced},
		{transfer, "arrays", everywhere, all, namedArrays},
		{transfer, o.manyName(), everywhere, last, manyWorkers},
		{transfer, "cpu-and-gpu", only(mempool.Pinned), all, cpuAndGPU},
		{mapping, "exchange", only(mempool.VMM), all, exchange},
		{mapping, "mapped-twice", only(mempool.VMM), inGo, mappedTwice},
		{mapping, "read-only", only(mempool.VMM), preferred, forbidden},
		{mapping, "sub-ranges", everywhere, preferred, subRanges},
		{handle, "file", only(mempool.Legacy), all, handleInAFile},
		{handle, "dead-owner", only(mempool.Legacy), preferred, deadOwner},
		{handle, "descriptor", only(mempool.VMM), preferred, passDescriptor},
		{contexts, "new-contexts", onGPUs, inGo, contextLife(true)},
		{contexts, "same-context", onGPUs, preferred, contextLife(false)},
		{contexts, "second-context", onGPUs, inGo, twoContexts},
		{early, "pool", everywhere, preferred, tooEarly("pool")},
		{early, "name", everywhere, preferred, tooEarly("name")},
		{early, "channel", everywhere, preferred, tooEarly("channel")},
		{early, "service", only(mempool.Host), preferred, earlyService},
		{stream, "ring", everywhere, streamers, ring},
		{stream, producedName, everywhere, func(have []string) []string { return streamers(have)[1:] }, ringFromConsumer},
		{stream, "broadcast", everywhere, preferredStreamers, broadcast},
		{stream, "queue", everywhere, preferredStreamers, queue},
		{stream, "arrays", everywhere, streamers, severalArrays},
		{stream, "consumer-killed", everywhere, preferredStreamers, consumerKilled},
		{stream, "producer-killed", everywhere, preferredStreamers, producerKilled},
		{stream, "stage-replaced", everywhere, preferredStreamers, stageReplaced},
		{survive, "service", lasting, preferred, death(serviceKilled).survived},
		{survive, "guard", lasting, preferred, death(guardKilled).survived},
		{survive, "upgrade", lasting, preferred, death(upgraded).survived},
		{transfer, "peer", onGPUs, preferred, peer},
		{order, "event", onGPUs, withStreams, inTransit(true, slowProducer)},
		{order, "fence", onGPUs, withStreams, inTransit(false, slowProducer)},
		{order, "slow-consumer", onGPUs, withStreams, inTransit(false, slowConsumer)},
	}
	if o.LargeBytes > 0 {
		list = slices.Insert(list, 5, plan{transfer, "large", only(mempool.Device), last, large})
	}
	return list
}

func all(have []string) []string  { return have }
func inGo(have []string) []string { return have[:1] }

// preferred returns Go and, if there is one, the preferred library in Python.
func preferred(have []string) []string { return have[:min(2, len(have))] }

// last returns the preferred library in Python, or Go if there is none.
func last(have []string) []string { return preferred(have)[len(preferred(have))-1:] }

// withStreams leaves out NumPy, which can use pinned memory but has no streams.
func withStreams(have []string) []string {
	return preferred(slices.DeleteFunc(slices.Clone(have), func(c string) bool { return c == "numpy" }))
}

// streamers returns Go and the libraries that users often use for streams, or Go and the preferred library if none of them is installed.
func streamers(have []string) []string {
	often := slices.DeleteFunc(slices.Clone(have), func(c string) bool { return !slices.Contains([]string{goConsumer, "numpy", "cupy", "torch"}, c) })
	if len(often) == 1 {
		return preferred(have)
	}
	return often
}

func preferredStreamers(have []string) []string { return preferred(streamers(have)) }

// chosen is a plan for one kind of memory and one consumer.
type chosen struct {
	plan
	kind     mempool.Kind
	consumer string
}

func (c chosen) name() string { return fmt.Sprintf("%s/%s/%s", c.scenario, c.plan.name, c.consumer) }

// direction says in which direction the data goes first.
func (c chosen) direction() string {
	if c.plan.name == producedName {
		return "from-consumer"
	}
	return "to-consumer"
}

// choose returns the checks that the options ask for.
func (o Options) choose(r *Roster) ([]chosen, error) {
	list, err := o.matching(o.Only, r)
	if err != nil || len(list) > 0 {
		return list, err
	}
	const names = "a check's name is KIND/SCENARIO/CHECK/CONSUMER, such as host/transfer/round-trip/numpy"
	for _, text := range o.Only { // maybe only the kind is not there
		withKind := "*/" + text
		if list, err = o.matching([]string{withKind}, r); err == nil && len(list) > 0 {
			return nil, fmt.Errorf("no check matches %q: %s; did you mean '%s'?", o.Only, names, withKind)
		}
	}
	return nil, fmt.Errorf("no check matches %q: %s, and globs of it are 'host/*' or '*/round-trip/*'", o.Only, names)
}

// matching returns the checks that match one of the globs, or all checks if there are no globs.
func (o Options) matching(globs []string, r *Roster) (list []chosen, err error) {
	wanted, err := glob(globs)
	if err != nil {
		return nil, err
	}
	kinds := o.Kinds
	if len(kinds) == 0 {
		kinds = mempool.Kinds()
	}
	for _, kind := range kinds {
		var here []chosen
		for _, p := range plans(o) {
			if slices.Contains(p.kinds, kind) {
				for _, consumer := range p.choose(r.consumersOf(kind)) {
					here = append(here, chosen{p, kind, consumer})
				}
			}
		}
		if why := r.missing(kind); why != "" {
			here = append(here, chosen{plan{scenario: transfer, name: "round-trip", run: func(context.Context, *scene) error {
				return skipf("%s cannot use all memory of kind %q: %s", o.Python, kind, why)
			}}, kind, missingOnes})
		}
		for _, c := range here {
			if len(globs) == 0 || wanted.MatchString(string(kind)+"/"+c.name()) {
				list = append(list, c)
			}
		}
	}
	return list, nil
}

// glob returns a regular expression for patterns in which * matches any text and ? matches one character.
func glob(patterns []string) (*regexp.Regexp, error) {
	quoted := make([]string, len(patterns))
	for i, p := range patterns {
		quoted[i] = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(p))
	}
	return regexp.Compile("^(?:" + strings.Join(quoted, "|") + ")$")
}

// skip is the error of a check that cannot run here. It contains the reason.
type skip struct{ reason string }

func (s *skip) Error() string { return s.reason }

func skipf(format string, args ...any) error { return &skip{fmt.Sprintf(format, args...)} }

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
