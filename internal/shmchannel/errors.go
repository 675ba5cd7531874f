package shmchannel

import (
	"errors"
	"fmt"
)

// Errors of this package. Some come in a type that says more: [FullError], [UnknownMemberError], [FrameError].
var (
	// ErrInvalid means that the caller asked for what cannot be.
	ErrInvalid = errors.New("shmchannel: invalid argument")
	// ErrFile means that a file is not what the channel's memory is made of.
	ErrFile = errors.New("shmchannel: not a file of this channel")
	// ErrCorrupt means that the shared memory contradicts itself. The member that finds this can go no further.
	ErrCorrupt = errors.New("shmchannel: the shared memory is corrupt")
	// ErrFull means that the channel has no room for a frame.
	ErrFull = errors.New("shmchannel: the channel is full")
	// ErrNoSlot means that the channel has as many members of a role as it can have.
	ErrNoSlot = errors.New("shmchannel: no slot for another member")
	// ErrClosed means that nothing can be published any more.
	ErrClosed = errors.New("shmchannel: the channel is closed")
	// ErrEnded means that the last frame of a closed channel was taken.
	ErrEnded = errors.New("shmchannel: the channel has ended")
	// ErrDestroyed means that the channel's memory goes away.
	ErrDestroyed = errors.New("shmchannel: the channel is destroyed")
	// ErrLeft means that this member takes no part in the channel: not yet, or not any more.
	ErrLeft = errors.New("shmchannel: this member takes no part in the channel")
	// ErrUnknownMember means that a file of another member has not arrived yet.
	ErrUnknownMember = errors.New("shmchannel: the file of a member has not arrived")
	// ErrFrame means that a frame cannot be had because its producer wrote nonsense. The next one can.
	ErrFrame = errors.New("shmchannel: the frame is corrupt")
	// ErrInHand means that a consumer has as many frames in hand as it may.
	ErrInHand = errors.New("shmchannel: too many frames in hand")
	// ErrReleased means that a frame is not in the caller's hands.
	ErrReleased = errors.New("shmchannel: the frame is not in hand")
	// ErrUnfinished means that a fence cannot be stored yet: see [Consumer.Release].
	ErrUnfinished = errors.New("shmchannel: an earlier fence is not reached")
)

// FullError says why there is no room. It is [ErrFull].
type FullError struct {
	Number   uint64 // of the frame that cannot be published
	Consumer Peer   // of a broadcast: the consumer that is furthest behind
	Floor    uint64 // that consumer has not released the frame of this number
	Waiting  int    // of a queue: frames that no consumer has
}

func (e *FullError) Error() string {
	if e.Consumer.ID != 0 {
		return fmt.Sprintf("%v: no room for frame %d: consumer %d (process %d) has not released frame %d",
			ErrFull, e.Number, e.Consumer.ID, e.Consumer.PID, e.Floor)
	}
	return fmt.Sprintf("%v: no room for frame %d: %d frames wait", ErrFull, e.Number, e.Waiting)
}

func (e *FullError) Unwrap() error { return ErrFull }

// UnknownMemberError names the member whose file is needed first. It is [ErrUnknownMember]. The caller waits for the file,
// gives it to AddTrack or AddCursor, and calls again.
type UnknownMemberError struct {
	Role Role
	Slot int
	ID   uint64
}

func (e *UnknownMemberError) Error() string {
	return fmt.Sprintf("%v: %v %d in slot %d", ErrUnknownMember, e.Role, e.ID, e.Slot)
}

func (e *UnknownMemberError) Unwrap() error { return ErrUnknownMember }

// FrameError says which frame cannot be had. It is [ErrFrame].
type FrameError struct {
	Number   uint64
	Producer int // its slot
	Reason   string
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("%v: frame %d of the producer in slot %d: %s", ErrFrame, e.Number, e.Producer, e.Reason)
}

func (e *FrameError) Unwrap() error { return ErrFrame }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
