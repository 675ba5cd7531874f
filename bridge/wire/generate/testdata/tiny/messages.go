package wire

// Key identifies nothing in particular.
type Key [4]byte

// Error says why.
type Error struct {
	Code    Code   `wire:"c"`      // stable code
	Message string `wire:"m,text"` // text for people
}

// Point says where.
type Point struct {
	X     uint64 `wire:"x"`  // to the right
	Y     uint64 `wire:"y?"` // to the top; left out: on the ground
	Label []byte `wire:"lb"` // what stands there, see `x`
}

// All has a field of every type.
type All struct {
	Count    uint64   `wire:"u"`    // a number
	MayCount uint64   `wire:"mu?"`  // a number or none
	Flag     bool     `wire:"b"`    // a flag
	MayFlag  bool     `wire:"mb?"`  // a flag or none
	Text     string   `wire:"s"`    // a text
	MayText  string   `wire:"ms?"`  // a text or none
	Data     []byte   `wire:"bn"`   // bytes
	MayData  []byte   `wire:"mbn?"` // bytes or none
	Key      Key      `wire:"k"`    // bytes, just so many
	Counts   []uint64 `wire:"lu"`   // numbers
	Steps    []int64  `wire:"li?"`  // numbers, also negative ones
	Texts    []string `wire:"ls?"`  // texts
	Point    Point    `wire:"p"`    // a structure
	MayPoint *Point   `wire:"mp?"`  // a structure or none
	// a list of structures, whose meaning takes more words than there is room for behind the field, so that it stands above it in
	// Python
	Points []Point `wire:"l?"`
}

// Spot describes a place by hand.
//
//wire:go
type Spot struct {
	ID   uint64 `wire:"id"`               // id
	Kind Kind   `wire:"k" poolsvc:"sort"` // sort: `soft` or `hard`
	Pool uint64 `wire:"pl"`               // pool id
}

// Tensor describes content.
//
//wire:go
type Tensor struct {
	DType string   `wire:"dt"`  // element type
	Shape []uint64 `wire:"sh?"` // shape; left out: a scalar
}

// SeenInfo describes what is seen at a place. This is the second sentence.
//
//wire:public
type SeenInfo struct {
	Spot   Spot   `wire:"sp,embed"` // the place
	Tensor Tensor `wire:"t"`        // content
	At     Time   `wire:"at"`       // when it is seen
	// since when it waits; none: it does not wait. This sentence is not in docs/protocol.md
	Since   Time          `wire:"si?,none" poolsvc:"waits_since"`
	User    UserID        `wire:"us?,none=Since"`           // user id, `as` a number
	Process ProcessID     `wire:"ps?,none=Since"`           // process id
	Ending  SessionEnding `wire:"en?,none" poolsvc:",zero"` // `lost` or `left`; none: it has not ended
	Took    Duration      `wire:"tk?" poolsvc:",omitempty"` // how long it took
	Bytes   uint64        `wire:"n?" poolsvc:"-"`           // bytes; none: it has no bytes
	Readers []uint64      `wire:"rd?"`                      // sessions
	Seen    []SeenCount   `wire:"sn?" poolsvc:"-"`          // what is counted
	Data    Point         `wire:"pt"`                       // a structure that is not public
}

// SeenCount counts.
//
//wire:public
type SeenCount struct {
	WaitsFor Count `wire:"wf"` // how many wait
}

// Ask asks. This is the second sentence, which stands apart in Python.
//
//wire:request ask AskReply
type Ask struct {
	All All `wire:"a"` // all there is
}

// AskReply has the answer.
type AskReply struct {
	Answer uint64 `wire:"n"` // the answer
}

// AskAgain asks again.
//
//wire:request ask-again AskReply
type AskAgain struct {
	Point Point `wire:"p"` // where
}

// Stop asks nothing.
//
//wire:request stop
type Stop struct{}

// EmptyReply says that it was done.
type EmptyReply struct{}

// Bye says that this is the end.
//
//wire:notice bye
type Bye struct {
	Why Error `wire:",inline"` // why
}

// Here says where.
//
//wire:notice here
type Here struct {
	Points []Point `wire:"p"` // points
}
