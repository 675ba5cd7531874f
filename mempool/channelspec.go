package mempool

import (
	"cmp"
	"fmt"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// ChannelMode says how many subscribers get each frame of a channel.
type ChannelMode string

// These are the modes of a channel.
const (
	// Broadcast: every subscriber gets every frame.
	Broadcast ChannelMode = "broadcast"
	// WorkQueue: one subscriber gets each frame. If this subscriber ends before it acknowledges the frame, another subscriber gets the
	// frame.
	WorkQueue ChannelMode = "queue"
)

// FullPolicy says what happens when a channel is full because a subscriber has not taken or not released old frames.
type FullPolicy string

// These are the policies of channels and subscribers.
const (
	// Block: the producer waits.
	Block FullPolicy = "block"
	// DropOldest: the channel drops its oldest frame. Subscribers that have not taken this frame miss the frame.
	DropOldest FullPolicy = "drop-oldest"
	// Latest: the channel drops frames as with DropOldest, and a subscriber gets only the newest frame.
	Latest FullPolicy = "latest"
	// Fail: the call that sends the frame fails.
	Fail FullPolicy = "fail"
)

// Validate returns an error if p is not one of the policies.
//
// Errors: [ErrInvalid].
func (p FullPolicy) Validate() error {
	switch p {
	case Block, DropOldest, Latest, Fail:
		return nil
	}
	return typed.Errorf(ErrInvalid, "unknown policy %q for a full channel (known: %s, %s, %s, %s)", string(p), Block, DropOldest, Latest, Fail)
}

// These are the limits of channels.
const (
	DefaultCapacity = 8   // frames of a channel whose spec names no capacity
	MaxChannels     = 256 // channels of a pool
	MaxMembers      = 256 // members that a session has in channels
)

// ChannelSpec describes a channel that a client wants to make. It is plain data.
type ChannelSpec struct {
	Name string
	// Pool is the id of the pool whose buffers the channel carries. Every user of the pool may use the channel.
	Pool uint64
	// Mode is the mode of the channel. An empty Mode means Broadcast.
	Mode ChannelMode
	// Capacity is the greatest number of frames that the channel keeps. It is a number from 1 to MaxCapacity. If a client leaves it 0, the
	// channel keeps DefaultCapacity frames.
	Capacity int
	// Full says what happens when the channel is full. An empty Full means Block.
	Full FullPolicy
	// MaxDeliveries is how often subscribers of a queue get a frame that none of them acknowledges, from 1 to MaxDelivery. The subscriber that
	// would get the frame once more drops the frame instead, and the service notes the event FrameUndeliverable. 0: without end.
	MaxDeliveries int
}

// Filled returns the spec with the default Mode and Full if they are empty. The protocol has no default Capacity: a client fills in
// DefaultCapacity before it sends the spec.
func (s ChannelSpec) Filled() ChannelSpec {
	if s.Mode == "" {
		s.Mode = Broadcast
	}
	if s.Full == "" {
		s.Full = Block
	}
	return s
}

// Validate returns an error if a field of s has a value that is not allowed.
//
// Errors: [ErrInvalid].
func (s ChannelSpec) Validate() error {
	s = s.Filled()
	if err := ValidateName("channel", s.Name); err != nil {
		return err
	}
	if s.Mode != Broadcast && s.Mode != WorkQueue {
		return typed.Errorf(ErrInvalid, "unknown mode %q of a channel (known: %s, %s)", string(s.Mode), Broadcast, WorkQueue)
	}
	if s.Capacity < 1 || s.Capacity > MaxCapacity {
		return typed.Errorf(ErrInvalid, "channel %q: a channel keeps 1 to %d frames, not %d", s.Name, MaxCapacity, s.Capacity)
	}
	switch {
	case s.MaxDeliveries < 0 || s.MaxDeliveries > MaxDelivery:
		return typed.Errorf(ErrInvalid, "channel %q: a frame is delivered at most 1 to %d times, or without end (0), not %d times", s.Name, MaxDelivery, s.MaxDeliveries)
	case s.MaxDeliveries > 0 && s.Mode != WorkQueue:
		return typed.Errorf(ErrInvalid, "channel %q: a most of %d deliveries is for queues; each subscriber of a broadcast gets a frame once: leave it out, or make a queue",
			s.Name, s.MaxDeliveries)
	}
	return s.Full.Validate()
}

// ChannelIdentity says which channel it is, and its settings: what stays the same while the channel exists. It is plain data.
type ChannelIdentity struct {
	// ID is never reused within an epoch.
	ID uint64
	ChannelSpec
}

// FrameOptions says how a frame is sent.
type FrameOptions struct {
	// Tensor describes the content, of one array or, from [Pack], of several. nil means that the content has the description with which the
	// buffer was allocated.
	Tensor *Tensor
	// Meta is the producer's data about the frame, which is sent as MessagePack: at most 8,320 bytes, 8 deep. The keys are texts in UTF-8. The
	// values are nil, booleans, numbers, strings in UTF-8, []byte, and slices and maps with string keys of these. Subscribers get nil, bool,
	// int64 (uint64 for greater numbers), float64, string, []byte, []any and map[string]any.
	Meta map[string]any
	Completion
}

// SubscribeOptions says with which frame a subscription begins, what happens when the subscriber is too slow, and how the subscriber
// acknowledges frames.
type SubscribeOptions struct {
	// If Oldest is set, the subscription begins with the oldest frame that the channel keeps. Otherwise the subscription begins with the
	// newest frame.
	Oldest bool
	// Full says what happens when the channel is full because of this subscriber. An empty Full means that the policy of the channel applies.
	Full FullPolicy
	// If ManualAck is true, a frame is settled only when the subscriber calls the frame's method Ack, Requeue or Release. If ManualAck is
	// false, each call that takes the next frame acknowledges all earlier frames that are not settled.
	ManualAck bool
	// NoProducers says what happens when no producer is left and the subscriber has got all frames. An empty NoProducers means
	// WaitForProducers.
	NoProducers NoProducersPolicy
}

// ChannelProducer is a producer that takes part in a channel, or did.
type ChannelProducer struct {
	PID uint32 // its process id
	// Ending says how the producer left: [SessionLeft] if it left the channel or closed its client. Empty: it takes part.
	Ending SessionEnding
}

// String describes the producer for people.
func (p ChannelProducer) String() string {
	words := map[SessionEnding]string{"": "takes part", SessionLeft: "left", SessionLost: "was killed, or ended without closing its client",
		SessionClosed: "was ended by an operator"}
	return fmt.Sprintf("pid %d %s", p.PID, cmp.Or(words[p.Ending], "was ended by the service"))
}

// NoProducersPolicy says what a subscriber does when a producer was there, none is left, and the channel is not closed. A program is a
// producer from its first frame, or its first publisher, until its client is closed or its process ends.
type NoProducersPolicy string

// These are the policies of a subscriber without producers.
const (
	// WaitForProducers: the subscriber waits for another producer.
	WaitForProducers NoProducersPolicy = "wait"
	// EndWithoutProducers: the subscription ends, as when the channel is closed.
	EndWithoutProducers NoProducersPolicy = "end"
	// FailWithoutProducers: the subscription ends with an error.
	FailWithoutProducers NoProducersPolicy = "fail"
)

// Validate returns an error if the options are wrong for every channel.
//
// Errors: [ErrInvalid].
func (o SubscribeOptions) Validate() error {
	switch o.NoProducers {
	case "", WaitForProducers, EndWithoutProducers, FailWithoutProducers:
	default:
		return typed.Errorf(ErrInvalid, "unknown policy %q for a subscriber without producers (known: %s, %s, %s)", string(o.NoProducers),
			WaitForProducers, EndWithoutProducers, FailWithoutProducers)
	}
	if o.Full == "" {
		return nil
	}
	return o.Full.Validate()
}
