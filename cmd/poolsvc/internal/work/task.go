package work

// Task is a task for a worker. Each task uses only some of the fields.
type Task struct {
	// Task is the name of the task. The variable `tasks` in worker.go has the names of the tasks that a Go worker can do.
	Task string `json:"task"`
	// Name is the name of a buffer or a channel. Names are the names of several buffers.
	Name  string   `json:"name,omitempty"`
	Names []string `json:"names,omitempty"`
	// Pool is the name of the pool in which the worker allocates.
	Pool string `json:"pool,omitempty"`
	// Consumer is the library whose arrays the worker uses.
	Consumer string `json:"consumer,omitempty"`
	Elements uint64 `json:"elements,omitempty"`
	// Write says whether the worker asks for a write lease.
	Write bool `json:"write,omitempty"`
	// Pattern is the expected content of the memory. After the comparison, the worker writes the pattern Then, or applies Transform, if
	// the task has one of them.
	Pattern   *Pattern   `json:"pattern,omitempty"`
	Then      *Pattern   `json:"then,omitempty"`
	Transform *Transform `json:"transform,omitempty"`
	// Timeout is the limit of each wait, in seconds.
	Timeout float64 `json:"timeout,omitempty"`
	// What is the thing that the worker waits for: "service", "pool", "name" or "channel". For the task "await", What
	// is the way in which the worker waits: [ByEvent] or [ByFence].
	What string `json:"what,omitempty"`
	// Path is the path of a socket, or of a file that contains a handle or kernels.
	Path string `json:"path,omitempty"`
	// Handle is a driver's handle of 64 bytes. Device is the UUID of a GPU: the GPU that has the memory of the handle, or the GPU that
	// the worker uses.
	Handle []byte `json:"handle,omitempty"`
	Device string `json:"device,omitempty"`
	// Rounds is the number of rounds of the task "context-life". Destroy says whether the worker destroys the context after each round.
	Rounds  int  `json:"rounds,omitempty"`
	Destroy bool `json:"destroy,omitempty"`
	// Count is the number of frames that the worker takes or publishes. If a task that takes frames has Count 0, the
	// worker takes all frames until the channel is closed. Number is the number of the first frame that the worker
	// publishes. To is the name of the channel to which the task "stream-relay" publishes. Keep says whether the worker
	// keeps the frames that it takes. Oldest says whether the subscription begins with the oldest frame in the channel.
	Count  int    `json:"count,omitempty"`
	Number uint64 `json:"number,omitempty"`
	To     string `json:"to,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
	Oldest bool   `json:"oldest,omitempty"`
	// If Hold is true, a kernel holds the worker's stream until the gate is open. Then a second kernel runs in the
	// stream for Slow seconds.
	Hold bool    `json:"hold,omitempty"`
	Slow float64 `json:"slow,omitempty"`
}

// Answer is the result of a task.
type Answer struct {
	OK    bool     `json:"ok"`
	Error *Failure `json:"error,omitempty"`

	Elements   uint64   `json:"elements,omitempty"`
	Mapped     bool     `json:"mapped,omitempty"` // the memory is shared with another process and is not a copy
	Mismatches uint64   `json:"mismatches,omitempty"`
	First      []string `json:"first,omitempty"`
	Written    bool     `json:"written,omitempty"`
	// Waited is how long the task waited, in seconds.
	Waited float64 `json:"waited,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	// Numbers are the numbers that the producer wrote into the metadata of the frames. Sequence are the sequence numbers that the channel
	// gave to the frames. Missed is the number of frames that the channel dropped. Ended says whether the channel was closed. Stopped is
	// the error of the first frame that the task could not publish; before it, the task published Rounds frames.
	Numbers  []uint64 `json:"numbers,omitempty"`
	Sequence []uint64 `json:"sequence,omitempty"`
	Missed   uint64   `json:"missed,omitempty"`
	Ended    bool     `json:"ended,omitempty"`
	Stopped  *Failure `json:"stopped,omitempty"`
	// Refused has, for each sort of memory, the error with which the driver refused to make a handle. The keys are the sorts of memory.
	Refused map[string]*Failure `json:"refused,omitempty"`
	// Raised has the errors in a forked child process. A key says what the child tried. Signal is the number of the
	// signal that ended a child process when it accessed the memory.
	Raised map[string]string `json:"raised,omitempty"`
	Signal int               `json:"signal,omitempty"`
	// Pointers are the addresses of several mappings of the same memory.
	Pointers []uint64 `json:"pointers,omitempty"`
	// API is the error that the worker gets when it writes read-only memory with the library. Driver is the error that the worker gets when it
	// writes the same memory with a call of the driver.
	API    *Failure `json:"api,omitempty"`
	Driver *Failure `json:"driver,omitempty"`
	// Handle is a driver's handle of 64 bytes that the task made.
	Handle []byte `json:"handle,omitempty"`
	PID    int    `json:"pid,omitempty"`
	// Busy says whether the stream still had work to do when the worker answered. Seconds is how long the calls took that queued this
	// work.
	Busy    bool    `json:"busy,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// Failure is an error in a worker. Failure is also an error type in Go.
type Failure struct {
	// Type is the type of a Python exception or of a Go error.
	Type string `json:"type"`
	// Code is the error code of the protocol, if the error has a code.
	Code    string `json:"code,omitempty"`
	Message string `json:"message"`
}

func (f *Failure) Error() string { return f.Type + ": " + f.Message }

// Probe is the answer to the task "probe". It says which libraries a worker can use.
type Probe struct {
	OK       bool              `json:"ok"`
	Python   string            `json:"python"`
	Packages map[string]string `json:"packages"`
	// Native says whether the Python package of the worker has its native module.
	Native bool `json:"native"`
	// Consumers lists, for each kind of memory, the libraries that can use memory of this kind. The preferred library comes first.
	Consumers map[string][]string `json:"consumers"`
	// Missing says, for a kind of memory, why the libraries that are not in Consumers cannot use memory of this kind.
	Missing map[string]string `json:"missing"`
}
