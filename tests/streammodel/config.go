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
	Misses    bool   // one that blocks may miss frames
	Full      policy // of a queue
	Policies  [mostConsumers]policy
	Oldest    bool                // joiners begin with the oldest frame that is kept
	Leave     [mostConsumers]bool // may leave, with and without a frame in hand
	Passes    bool                // a consumer that blocks lets the channel go on before it lets go of a frame
	GiveBack  int                 // how often each consumer may give a frame of a queue back
	Fails     int                 // how often each consumer may find a frame that has failed
	GPU       bool                // frames are released while work on them still runs
	Drain     bool                // producers have all their blocks back at the end, but those that are kept
	Turns     bool                // producers let others go first
	Joined    [mostConsumers]bool // take part from the beginning
	Hoards    bool                // consumers never let go of a frame
	Heir      bool                // producer 1 gets the slot of producer 0
	Script    []task
	Deaths    int
	Versions  int8 // how many versions there are in a tail before they begin again; fewer than changes: frames may be missed
	Mutant    string

	Most int // states; more is a failure of the configuration
}

func (m *model) n() int8 { return int8(m.Slots) }

func (m *model) oldestKept(tail int8) int8 { return max(1, tail-int8(m.Capacity)+1) }

func (m *model) mutant(name string) bool { return m.Mutant == name }

// holds says whether a consumer says in a hold what it takes, and not only by its floor.
func (m *model) holds(c int8) bool { return m.Queue || m.Policies[c].drops() }

// limit is how many frames may wait in a queue.
func (m *model) limit() int8 {
	if m.Full == latest {
		return 1
	}
	return int8(m.Capacity)
}

// first is the first number that a consumer which joins at this tail may take.
func (m *model) first(tail int8) int8 {
	if m.Oldest {
		return m.oldestKept(tail)
	}
	return max(1, tail)
}
