package work

// Task is a task for a worker. Each task uses only some of the fields.
type Task struct {
	// Task is the name of the task: see [Worker].
	Task string `json:"task"`
	// Name is the name of a buffer or a channel. Names are the names of several buffers.
	Name  string   `json:"name,omitempty"`
	Names []string `json:"names,omitempty"`
	// Pool is the name of the pool to allocate in.
	Pool string `json:"pool,omitempty"`
	// Consumer is the library whose arrays the worker uses.
	Consumer string `json:"consumer,omitempty"`
	Elements uint64 `json:"elements,omitempty"`
	// Write says whether to ask for a write lease.
	Write bool `json:"write,omitempty"`
	// Pattern is the expected content of the memory. After the comparison, the worker writes Then, or applies Transform.
	Pattern   *Pattern   `json:"pattern,omitempty"`
	Then      *Pattern   `json:"then,omitempty"`
	Transform *Transform `json:"transform,omitempty"`
	// Timeout is the limit of each wait, in seconds.
	Timeout float64 `json:"timeout,omitempty"`
	// What is the thing to wait for: "service", "pool", "name" or "channel". For the task "await", What is the way to
	// wait: [ByEvent] or [ByFence].
	What string `json:"what,omitempty"`
	// Path is the path of a file with a handle or with kernels, or of a socket.
	Path string `json:"path,omitempty"`
	// Handle is a driver's handle of 64 bytes. Device is the UUID of a GPU: the GPU of the handle, or the GPU to work on.
	Handle []byte `json:"handle,omitempty"`
	Device string `json:"device,omitempty"`
	// Rounds is the number of rounds. Destroy says whether to destroy the context after each round.
	Rounds  int  `json:"rounds,omitempty"`
	Destroy bool `json:"destroy,omitempty"`
	// Count is the number of frames to take or to publish; 0 takes all frames until the channel is closed. Number is
	// the number of the first frame to publish. To is the channel in which a stage publishes. Keep says whether the
	// worker keeps the frames that it takes. Oldest is the option of the subscription.
	Count  int    `json:"count,omitempty"`
	Number uint64 `json:"number,omitempty"`
	To     string `json:"to,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
	Oldest bool   `json:"oldest,omitempty"`
	// If Hold is true, a kernel holds the stream until the gate is open. Then another kernel keeps the stream busy for
	// Slow seconds more.
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
	// Numbers are the numbers in the frames' maps. Sequence has the numbers of the frames in the channel. Missed is the number of frames
	// that the channel dropped. Ended says whether the channel was closed. Stopped says why the task published only the first Rounds
	// frames.
	Numbers  []uint64 `json:"numbers,omitempty"`
	Sequence []uint64 `json:"sequence,omitempty"`
	Missed   uint64   `json:"missed,omitempty"`
	Ended    bool     `json:"ended,omitempty"`
	Stopped  *Failure `json:"stopped,omitempty"`
	// Refused has the errors of the driver for handles, by the sort of memory.
	Refused map[string]*Failure `json:"refused,omitempty"`
	// Raised has the errors of a forked child, by what the child tried. Signal is the number of the signal that ended a
	// child when the child touched the memory.
	Raised map[string]string `json:"raised,omitempty"`
	Signal int               `json:"signal,omitempty"`
	// Pointers are several addresses of the same memory.
	Pointers []uint64 `json:"pointers,omitempty"`
	// API is the error of a write to read-only memory through the library. Driver is the error of a write to this
	// memory directly through the driver.
	API    *Failure `json:"api,omitempty"`
	Driver *Failure `json:"driver,omitempty"`
	// Handle is a driver's handle of 64 bytes that the task made.
	Handle []byte `json:"handle,omitempty"`
	PID    int    `json:"pid,omitempty"`
	// Busy says whether the stream still had work to do. Seconds is the time of the calls that queued this work.
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

// Probe says which libraries a worker can use.
type Probe struct {
	OK       bool              `json:"ok"`
	Python   string            `json:"python"`
	Packages map[string]string `json:"packages"`
	// Native says whether the worker's package has its native module.
	Native bool `json:"native"`
	// Consumers lists, for each kind, the libraries that can use its memory. The preferred library comes first.
	Consumers map[string][]string `json:"consumers"`
	// Missing says, for a kind, why other libraries cannot use its memory.
	Missing map[string]string `json:"missing"`
}
