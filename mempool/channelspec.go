package mempool

import (
	"time"

	"github.com/poolbridge/poolbridge/internal/situation"
)

// ChannelMode says who gets the frames of a channel.
type ChannelMode string

// The modes of a channel.
const (
	// Broadcast: every subscriber sees every frame.
	Broadcast ChannelMode = "broadcast"
	// WorkQueue: each frame goes to one subscriber, and comes back if that one ends before it acknowledged it.
	WorkQueue ChannelMode = "queue"
)

// FullPolicy says what happens when a channel is full because a subscriber is behind.
type FullPolicy string

// The policies of channels and subscribers.
const (
	// Block: the sender waits.
	Block FullPolicy = "block"
	// DropOldest: the oldest frame goes, and those who have not seen it miss it.
	DropOldest FullPolicy = "drop-oldest"
	// Latest: as DropOldest, and only the newest frame is ever handed out.
	Latest FullPolicy = "latest"
	// Fail: sending fails.
	Fail FullPolicy = "fail"
)

// Validate says whether p is one of the policies.
//
// Errors: [ErrInvalid].
func (p FullPolicy) Validate() error {
	switch p {
	case Block, DropOldest, Latest, Fail:
		return nil
	}
	return situation.Of(ErrInvalid, "unknown policy %q for what is full (known: %s, %s, %s, %s)", string(p), Block, DropOldest, Latest, Fail)
}

// Limits of channels.
const (
	MaxCapacity  = 1024 // frames of a channel
	MaxChannels  = 256  // channels of a pool
	MaxMembers   = 256  // members of channels that a session has
	MaxMeta      = 16   // entries of a frame's map
	MaxMetaBytes = 256  // bytes of each key and value
)

// ChannelSpec describes a channel to be made. It is plain data.
type ChannelSpec struct {
	Name string
	// Pool is the id of the pool whose buffers the channel carries; who may use the pool may use the channel.
	Pool uint64
	// Mode is Broadcast if it is left empty.
	Mode ChannelMode
	// Capacity is how many frames the channel keeps.
	Capacity int
	// Full is Block if it is left empty.
	Full FullPolicy
}

// Filled is the spec with what was left empty filled in.
func (s ChannelSpec) Filled() ChannelSpec {
	if s.Mode == "" {
		s.Mode = Broadcast
	}
	if s.Full == "" {
		s.Full = Block
	}
	return s
}

// Validate says whether s describes a channel.
//
// Errors: [ErrInvalid].
func (s ChannelSpec) Validate() error {
	s = s.Filled()
	if err := ValidateName("channel", s.Name); err != nil {
		return err
	}
	if s.Mode != Broadcast && s.Mode != WorkQueue {
		return situation.Of(ErrInvalid, "unknown mode %q of a channel (known: %s, %s)", string(s.Mode), Broadcast, WorkQueue)
	}
	if s.Capacity < 1 || s.Capacity > MaxCapacity {
		return situation.Of(ErrInvalid, "channel %q: a channel keeps 1 to %d frames, not %d", s.Name, MaxCapacity, s.Capacity)
	}
	return s.Full.Validate()
}

// ChannelInfo is what a client must know about a channel. It is plain data.
type ChannelInfo struct {
	// ID is never reused within an epoch.
	ID uint64
	ChannelSpec
}

// FrameOptions says what a frame is sent with.
type FrameOptions struct {
	// Tensor describes the content anew, where it is not what the buffer was allocated for.
	Tensor *Tensor
	// Meta is what the sender says about the frame: at most 16 short texts.
	Meta map[string]string
	Completion
	// Wait is how long to wait for room: 0 as long as the context lasts, negative not at all.
	Wait time.Duration
}

// Validate says whether frames can be sent so.
//
// Errors: [ErrInvalid].
func (o FrameOptions) Validate() error {
	if len(o.Meta) > MaxMeta {
		return situation.Of(ErrInvalid, "a frame's map has at most %d entries, this one %d", MaxMeta, len(o.Meta))
	}
	for k, v := range o.Meta {
		if len(k) > MaxMetaBytes || len(v) > MaxMetaBytes {
			return situation.Of(ErrInvalid, "the keys and values of a frame's map have at most %d bytes, %q has %d and %d", MaxMetaBytes,
				k[:min(len(k), 32)], len(k), len(v))
		}
	}
	if o.EventOnly {
		return situation.Of(ErrInvalid, "a frame whose event stands alone cannot be sent: its lease ends, and nobody could tell when its memory may be "+
			"used again; send it with a fence as well")
	}
	return nil
}

// SubscribeOptions says how a channel's frames are to come.
type SubscribeOptions struct {
	// Oldest begins with the oldest frame that is kept, not with the newest.
	Oldest bool
	// Full is what happens when this subscriber is slow; empty: as the channel has it.
	Full FullPolicy
	// ManualAck leaves it to Ack, Requeue and Release to settle frames. Otherwise asking for the next frame acknowledges those
	// before it that were not settled.
	ManualAck bool
}

// Validate says whether frames can come so.
//
// Errors: [ErrInvalid].
func (o SubscribeOptions) Validate() error {
	if o.Full == "" {
		return nil
	}
	return o.Full.Validate()
}
