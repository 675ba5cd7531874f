package streammodel

// Config is a channel with its members, small enough to be explored.
type Config struct {
	Name      string
	Capacity  int
	Slots     int // N
	Producers int
	Consumers int
	Blocks    int // of each producer
	Frames    [mostProducers]int
	Queue     bool
	Misses    bool   // a consumer that blocks may miss frames
	Full      policy // policy of a queue
	Policies  [mostConsumers]policy
	Oldest    bool                // consumers that join begin with the oldest frame that is kept
	Leave     [mostConsumers]bool // consumers that may leave, with and without a frame in hand
	Passes    bool                // a consumer that blocks passes a frame before it releases it
	Requeue   int                 // how often each consumer may requeue a frame
	Fails     int                 // how often each consumer may find a frame that has failed
	GPU       bool                // frames are released while work on them still runs
	Drain     bool                // at the end producers have all their blocks back, except those that are kept
	Turns     bool                // producers let others go first
	Joined    [mostConsumers]bool // consumers that take part from the beginning
	Hoards    bool                // consumers never release a frame
	Heir      bool                // producer 1 gets the slot of producer 0
	GivesUp   bool                // the service gives frames of a dead producer up, so that its slot becomes free
	Script    []task
	Deaths    int
	Versions  int8 // how many versions there are in a tail before they repeat; fewer than changes: frames may be missed
	Mutant    string

	Most int // greatest number of states; more is an error in the configuration
}

func (m *model) n() int8 { return int8(m.Slots) }

func (m *model) oldestKept(tail int8) int8 { return max(1, tail-int8(m.Capacity)+1) }

func (m *model) mutant(name string) bool { return m.Mutant == name }

// holds says whether a consumer stores a hold for the frame that it takes. Otherwise only its floor says it.
func (m *model) holds(c int8) bool { return m.Queue || m.Policies[c].drops() }

// limit returns how many frames may wait in a queue.
func (m *model) limit() int8 {
	if m.Full == latest {
		return 1
	}
	return int8(m.Capacity)
}

// first returns the first number that a consumer which joins at this tail may take.
func (m *model) first(s *state, tail int8) int8 {
	first := max(1, tail)
	if m.Oldest {
		first = m.oldestKept(tail)
	}
	return max(first, s.first)
}
