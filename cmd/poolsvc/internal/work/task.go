package work

// Task is what a worker is told to do. Which fields matter is for the task to say.
type Task struct {
	// Task is the name of what to do: see [Worker].
	Task string `json:"task"`
	// Name of the buffer, and Names of several.
	Name  string   `json:"name,omitempty"`
	Names []string `json:"names,omitempty"`
	// Pool to allocate in.
	Pool string `json:"pool,omitempty"`
	// Consumer is the library whose arrays are to be used.
	Consumer string `json:"consumer,omitempty"`
	Elements uint64 `json:"elements,omitempty"`
	// Write asks for a write lease.
	Write bool `json:"write,omitempty"`
	// Pattern is what should be in memory; Then is written afterwards, or Transform is applied.
	Pattern   *Pattern   `json:"pattern,omitempty"`
	Then      *Pattern   `json:"then,omitempty"`
	Transform *Transform `json:"transform,omitempty"`
	// Timeout in seconds of what has to be waited for.
	Timeout float64 `json:"timeout,omitempty"`
	// What is waited for: "service", "pool", "name" or "channel"; or what is waited by, [ByEvent] or [ByFence].
	What string `json:"what,omitempty"`
	// Path of a file with a handle, or with the kernels that compare.
	Path string `json:"path,omitempty"`
	// Handle is a driver's handle of 64 bytes, and Device the UUID of the GPU that it belongs to, or to work on.
	Handle []byte `json:"handle,omitempty"`
	Device string `json:"device,omitempty"`
	// Rounds to go, and whether the context is destroyed after each.
	Rounds  int  `json:"rounds,omitempty"`
	Destroy bool `json:"destroy,omitempty"`
	// Count of frames to take or to publish, where 0 takes all until the channel is closed; Number of the first to publish, and To
	// which channel a stage publishes. Keep keeps the frames that are taken; Oldest is the subscription's.
	Count  int    `json:"count,omitempty"`
	Number uint64 `json:"number,omitempty"`
	To     string `json:"to,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
	Oldest bool   `json:"oldest,omitempty"`
	// Hold has a kernel keep the stream busy, and then for Slow seconds more once it is let go.
	Hold bool    `json:"hold,omitempty"`
	Slow float64 `json:"slow,omitempty"`
}

// Answer is what a worker says when it is done.
type Answer struct {
	OK    bool     `json:"ok"`
	Error *Failure `json:"error,omitempty"`

	Elements   uint64   `json:"elements,omitempty"`
	Mapped     bool     `json:"mapped,omitempty"` // the memory is another process's, not a copy
	Mismatches uint64   `json:"mismatches,omitempty"`
	First      []string `json:"first,omitempty"`
	Written    bool     `json:"written,omitempty"`
	// Waited is how long, in seconds.
	Waited float64 `json:"waited,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	// Numbers of frames, as they say themselves, and their Sequence in the channel; Missed is how many the channel dropped, and
	// Ended that it was closed. Stopped says why not all could be published, of which Rounds were.
	Numbers  []uint64 `json:"numbers,omitempty"`
	Sequence []uint64 `json:"sequence,omitempty"`
	Missed   uint64   `json:"missed,omitempty"`
	Ended    bool     `json:"ended,omitempty"`
	Stopped  *Failure `json:"stopped,omitempty"`
	// Refused says how the driver refused to give handles, by the sort of memory.
	Refused map[string]*Failure `json:"refused,omitempty"`
	// Raised are the errors of what a forked child tried, and Signal what ended a child that touched the memory.
	Raised map[string]string `json:"raised,omitempty"`
	Signal int               `json:"signal,omitempty"`
	// Pointers to the same memory.
	Pointers []uint64 `json:"pointers,omitempty"`
	// API and Driver are the errors of writing what may only be read, through the library and past it.
	API    *Failure `json:"api,omitempty"`
	Driver *Failure `json:"driver,omitempty"`
	// Handle of 64 bytes that was made.
	Handle []byte `json:"handle,omitempty"`
	PID    int    `json:"pid,omitempty"`
	// Busy says that the stream had work to do; Seconds is how long the calls took that gave it some.
	Busy    bool    `json:"busy,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// Failure is an error in a worker. It is an error itself.
type Failure struct {
	// Type of a Python exception, or of a Go error.
	Type string `json:"type"`
	// Code of the wire, where it has one.
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

func (f *Failure) Error() string { return f.Type + ": " + f.Message }

// Probe is what a worker can use.
type Probe struct {
	OK       bool              `json:"ok"`
	Python   string            `json:"python"`
	Packages map[string]string `json:"packages"`
	// Native says whether the worker's package has its native module.
	Native bool `json:"native"`
	// Consumers are the libraries that can use memory of each kind, the preferred first.
	Consumers map[string][]string `json:"consumers"`
	// Missing says, for a kind, why others cannot.
	Missing map[string]string `json:"missing"`
}
