package bench

import "github.com/poolbridge/poolbridge/mempool"

// target is a comparison of poolbridge with another system in one workload.
type target struct {
	workload string
	kind     mempool.Kind
	bytes    uint64
	against  string
	atLeast  float64 // 0: there is no target
}

// targets are the goals of this project. docs/performance.md says which of them are reached.
var targets = []target{
	{"transfer", mempool.Host, 1 << 20, "multiprocessing.Queue", 20},
	{"transfer", mempool.Host, 1 << 20, "multiprocessing.shared_memory", 3},
	{"transfer", mempool.Host, 1 << 20, "multiprocessing.shared_memory (a new segment each)", 0},
	{"transfer", mempool.Host, 1 << 20, "pickle through a Unix socket", 0},
	{"transfer", mempool.Host, 1 << 20, "torch.multiprocessing", 0},
	{"transfer", mempool.Host, 1 << 20, "torch.multiprocessing, file_system", 0},
	{"transfer", mempool.Device, 1 << 20, "cuda.core buffers through multiprocessing.Queue", 20},
	{"transfer", mempool.Device, 1 << 20, "cuda.core descriptors through multiprocessing.Queue", 0},
	{"transfer", mempool.Device, 1 << 20, "cuda.core buffers opened once, their numbers through multiprocessing.Queue", 0},
	{"transfer", mempool.Device, 1 << 20, "torch.multiprocessing", 20},
	{"transfer", mempool.Device, 64 << 20, "multiprocessing.shared_memory", 500},
	{"transfer", mempool.Device, 64 << 20, "multiprocessing.shared_memory, page-locked", 0},
	{"engines/ray", mempool.Host, 1 << 20, "Ray's object store", 0},
	{"engines/ray", mempool.Host, 64 << 20, "Ray's object store", 5},
	{"engines/dask", mempool.Host, 1 << 20, "Dask alone", 0},
	{"engines/dask", mempool.Host, 64 << 20, "Dask alone", 0},
}

// serviceBytes limits a service's own memory, which does not include the memory that belongs to CUDA: see Footprint.
const serviceBytes = 128 << 20

// growthFactor limits how many times longer a transfer may take in a service with many buffers and sessions.
const growthFactor = 1.5

// These are the targets for a stream to one Python consumer that makes an array of each frame.
const (
	framesPerSecond = 100_000
	sleepingMicros  = 25
	spinningMicros  = 10
)

// copyShare is the share of the machine's plain copying speed that a copy into frames should reach.
const copyShare = 0.9

// iceoryx is the system with which Python streams are compared.
const iceoryx = "iceoryx2"

// iceoryxFactor says how many times more frames per second than iceoryx2 a Python stream should reach.
const iceoryxFactor = 2

// idleShare is the greatest share of one CPU that an idle service should use. It is not 0, because the Go runtime still wakes up sometimes
// when the program is idle after a busy time.
const idleShare = 1e-3

// ratios compares the results with the targets.
func ratios(r *Report) []Ratio {
	out := []Ratio{}
	add := func(workload, kind string, bytes uint64, against string, ratio, target float64) {
		out = append(out, Ratio{Workload: workload, Kind: kind, Bytes: bytes, Against: against, Ratio: ratio, Target: target,
			Met: ratio >= target})
	}
	for _, t := range targets {
		mine, ok := r.find(t.workload, string(t.kind), t.bytes, ours)
		theirs, there := r.find(t.workload, string(t.kind), t.bytes, t.against)
		if ok && there && mine.P50 != nil && theirs.P50 != nil && *mine.P50 > 0 {
			add(t.workload, string(t.kind), t.bytes, t.against, *theirs.P50 / *mine.P50, t.atLeast)
		}
	}
	for _, kind := range r.kinds() {
		name := streamName("go-python", 1)
		if mine, ok := r.find(name, kind, streamBytes, ours); ok && mine.P50 != nil {
			add(name, kind, streamBytes, "100,000 frames a second", mine.PerSecond/framesPerSecond, 1)
			add(name, kind, streamBytes, "25 µs from publish to array", sleepingMicros / *mine.P50, 1)
			if spins, ok := r.find(streamName(spinningWay, 1), kind, streamBytes, ours); ok && spins.P50 != nil {
				add(streamName(spinningWay, 1), kind, streamBytes, "10 µs from publish to array", spinningMicros / *spins.P50, 1)
			}
			if floor, ok := r.find(name, kind, 1, byteBySocket); ok && floor.P50 != nil {
				add(name, kind, streamBytes, byteBySocket, *floor.P50 / *mine.P50, 0)
			}
			for _, theirs := range r.Results {
				if theirs.Workload != name || theirs.Kind != kind || theirs.Bytes != streamBytes || theirs.PerSecond == 0 ||
					theirs.System == ours || r.doubtful(theirs) || r.doubtful(mine) {
					continue
				}
				target := 0.0
				if kind == string(mempool.Device) && theirs.System == "torch.multiprocessing" {
					target = 50
				}
				add(name, kind, streamBytes, theirs.System, mine.PerSecond/theirs.PerSecond, target)
			}
		}
		mine, ok := r.find(copyWorkload, kind, copyBytes, ours)
		alone, there := r.find(copyWorkload, kind, copyBytes, bandwidth)
		if ok && there && alone.PerSecond > 0 {
			target := copyShare
			if kind == string(mempool.Host) {
				target = 0 // no target: copying a frame cannot be faster than plain copying
			}
			add(copyWorkload, kind, copyBytes, bandwidth, mine.PerSecond/alone.PerSecond, target)
		}
	}
	for _, theirs := range r.Results {
		if mine, ok := r.find(theirs.Workload, theirs.Kind, theirs.Bytes, ours); ok && theirs.System == iceoryx && theirs.PerSecond > 0 {
			add(theirs.Workload, theirs.Kind, theirs.Bytes, iceoryx, mine.PerSecond/theirs.PerSecond, iceoryxFactor)
		}
	}
	few, many := map[string]Footprint{}, map[string]Footprint{}
	var kinds []string
	for _, p := range r.Service {
		if p.State != "idle" {
			continue
		}
		if _, ok := few[p.Kind]; !ok {
			few[p.Kind] = p
			kinds = append(kinds, p.Kind)
		}
		many[p.Kind] = p
	}
	for _, kind := range kinds {
		f, m := few[kind], many[kind]
		name := growthName(m.Buffers, m.Sessions)
		a, ok := r.find(growthName(f.Buffers, f.Sessions), kind, growthBytes, ours)
		b, there := r.find(name, kind, growthBytes, ours)
		if ok && there && *b.P50 > 0 {
			add(name, kind, growthBytes, "1.5 times what it takes with few", growthFactor**a.P50 / *b.P50, 1)
		}
		add("growth/memory of the service", kind, 0, "128 MiB besides CUDA's own", float64(serviceBytes)/float64(max(m.OwnBytes, 1)), 1)
		add("growth/CPU of the idle service", kind, 0, "a thousandth of a CPU", idleShare*m.Seconds/max(m.CPUSeconds, idleShare*m.Seconds/1000), 1)
	}
	return out
}
