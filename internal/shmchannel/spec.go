package shmchannel

// Mode says how many consumers get each frame.
type Mode uint64

// These are the modes of a channel.
const (
	Broadcast Mode = iota // every consumer gets every frame
	Queue                 // one consumer gets each frame
)

func (m Mode) String() string {
	return nameOf(uint64(m), "broadcast", "queue")
}

// Policy says what happens when a channel is full.
type Policy uint32

// These are the policies of a channel. A consumer of a broadcast can have its own policy.
const (
	Block      Policy = iota // the producer waits
	Fail                     // publishing fails
	DropOldest               // the oldest frame is dropped
	Latest                   // like DropOldest, but a consumer gets only the newest frame
)

func (p Policy) String() string { return nameOf(uint64(p), "block", "fail", "drop-oldest", "latest") }

// blocks reports whether the channel must keep the frames that a consumer with this policy has not released.
func (p Policy) blocks() bool { return p == Block || p == Fail }

// Role says whether a member is a producer or a consumer.
type Role int

// These are the roles of members.
const (
	ProducerRole Role = iota
	ConsumerRole
)

func (r Role) String() string { return nameOf(uint64(r), "producer", "consumer") }

func nameOf(i uint64, names ...string) string {
	if i < uint64(len(names)) {
		return names[i]
	}
	return "unknown"
}

// Spec describes a channel. A Spec is plain data and can be copied.
type Spec struct {
	Mode     Mode
	Capacity int
	Policy   Policy
	// MaxDeliveries is how often consumers of a queue get a frame that none of them acknowledges. 0: without end.
	MaxDeliveries int
}

// Validate returns an error if a field of s has a value that is not allowed.
//
// Errors: [ErrInvalid].
func (s Spec) Validate() error {
	switch {
	case s.Mode > Queue:
		return invalid("unknown mode %d of a channel", s.Mode)
	case s.Policy > Latest:
		return invalid("unknown policy %d", s.Policy)
	case s.Capacity < 1 || s.Capacity > MaxCapacity:
		return invalid("a channel keeps 1 to %d frames, not %d", MaxCapacity, s.Capacity)
	case s.MaxDeliveries < 0 || s.MaxDeliveries > MaxDelivery || s.MaxDeliveries > 0 && s.Mode != Queue:
		return invalid("a queue delivers a frame at most 0 (without end) to %d times, not %d; a broadcast has no such limit", MaxDelivery, s.MaxDeliveries)
	}
	return nil
}

// Peer identifies another member of the channel. This package returns Peers to its caller, for example in a [Frame] or in an error. The
// caller can use a Peer to find the member, or to name the member in a text.
type Peer struct {
	Seat     int
	ID       uint64
	Timeline uint64 // 0: the member has no timeline
	PID      uint32
}

// Ending is how a member left. 0 means that it takes part. Numbers that this package does not name are for the host's caller.
type Ending uint32

// A member left by itself, or its process is gone.
const (
	Left Ending = 1 + iota
	Lost
)

// ProducerState says of which process a producer is or was, and how it left.
type ProducerState struct {
	PID    uint32
	Ending Ending
}
