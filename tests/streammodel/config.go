package streammodel

// Config is a channel with its members. It is small enough that Explore can try every path.
type Config struct {
	Name      string
	Capacity  int
	Slots     int // the N of docs/streams.md: number of slots for entries, claims and records
	Producers int
	Consumers int
	Blocks    int // number of blocks of each producer
	Frames    [mostProducers]int
	Queue     bool
	Misses    bool   // a consumer that blocks the channel may miss frames
	Full      policy // policy of a queue
	Policies  [mostConsumers]policy
	Oldest    bool                // a consumer that joins begins with the oldest frame that the channel keeps
	Leave     [mostConsumers]bool // consumers that may leave: with a frame in hand, or without
	Passes    bool                // a consumer that blocks the channel moves its floor past a frame before it releases the frame
	Requeue   int                 // how many times each consumer may requeue a frame
	Fails     int                 // how many times each consumer may find that a frame has failed
	GPU       bool                // consumers release frames while their work on the frames still runs
	Drain     bool                // at the end, producers have all their blocks back, except blocks of frames that the channel keeps
	Turns     bool                // a producer lets the other producer go first
	Joined    [mostConsumers]bool // consumers that take part from the beginning
	Hoards    bool                // consumers never release a frame
	Heir      bool                // producer 1 gets the seat of producer 0
	GivesUp   bool                // the service gives up the frames of a dead producer, so that the seat of the producer becomes free
	Script    []task
	Deaths    int
	Versions  int8 // number of versions in a tail before they repeat; if there are fewer versions than changes, consumers may miss frames
	Mutant    string

	Most int // greatest number of states; more states are an error in the configuration
}

func (m *model) n() int8 { return int8(m.Slots) }

func (m *model) oldestKept(tail int8) int8 { return max(1, tail-int8(m.Capacity)+1) }

func (m *model) mutant(name string) bool { return m.Mutant == name }

// holds says whether a consumer stores a hold for a frame that it takes. Other consumers only store their floor and the
// number that they take next.
func (m *model) holds(c int8) bool { return m.Queue || m.Policies[c].drops() }

// limit returns how many frames may wait in a queue.
func (m *model) limit() int8 {
	if m.Full == latest {
		return 1
	}
	return int8(m.Capacity)
}

// first returns the number of the first frame that a consumer may take if the consumer joins when the newest frame has
// the number tail.
func (m *model) first(s *state, tail int8) int8 {
	first := max(1, tail)
	if m.Oldest {
		first = m.oldestKept(tail)
	}
	return max(first, s.first)
}
