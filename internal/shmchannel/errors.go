package shmchannel

import (
	"errors"
	"fmt"
)

// These are the errors of this package. For some of them, a type gives details: [FullError], [UnknownMemberError], [FrameError],
// [UndeliverableError].
var (
	// ErrInvalid means that an argument or a call is not allowed.
	ErrInvalid = errors.New("shmchannel: invalid argument")
	// ErrFile means that the caller passed a wrong file: the file belongs to another channel, or the file belongs to this channel but is
	// not the file that the call needs.
	ErrFile = errors.New("shmchannel: not a file of this channel")
	// ErrCorrupt means that numbers in the shared memory contradict each other. The member that returns this error cannot work any more.
	ErrCorrupt = errors.New("shmchannel: the shared memory is corrupt")
	// ErrFull means that the channel cannot accept another frame now.
	ErrFull = errors.New("shmchannel: the channel is full")
	// ErrNoSeat means that the channel cannot accept a new member: it already has [MaxProducers] producers or [MaxConsumers] consumers.
	ErrNoSeat = errors.New("shmchannel: no seat for another member")
	// ErrClosed means that the channel is closed, so nobody can publish in it any more.
	ErrClosed = errors.New("shmchannel: the channel is closed")
	// ErrEnded means that the channel is closed and no frame is left to take.
	ErrEnded = errors.New("shmchannel: the channel has ended")
	// ErrAbandoned means that every producer has left, that the channel is not closed, and that no frame is left to take.
	ErrAbandoned = errors.New("shmchannel: no producer is left")
	// ErrDestroyed means that the service has destroyed the channel. No member can publish or take frames any more.
	ErrDestroyed = errors.New("shmchannel: the channel is destroyed")
	// ErrLeft means that this member does not take part in the channel: it has not joined yet, has left, or is closed.
	ErrLeft = errors.New("shmchannel: this member takes no part in the channel")
	// ErrUnknownMember means that this member needs the file of another member, but the caller has not passed that file to AddTrack or
	// AddCursor yet.
	ErrUnknownMember = errors.New("shmchannel: the file of a member has not arrived")
	// ErrFrame means that a frame is unusable because its producer wrote wrong data. The consumer can take the next frame.
	ErrFrame = errors.New("shmchannel: the frame is corrupt")
	// ErrUndeliverable means that consumers got a frame of a queue as often as [Spec.MaxDeliveries] says, and none acknowledged it. The frame
	// is acknowledged now, without another delivery. The consumer can take the next frame.
	ErrUndeliverable = errors.New("shmchannel: the frame was delivered too often")
	// ErrInHand means that a consumer already has [MaxInHand] frames in hand, so it cannot take another frame.
	ErrInHand = errors.New("shmchannel: too many frames in hand")
	// ErrReleased means that the consumer does not have the frame in hand: for example, it has already released the frame.
	ErrReleased = errors.New("shmchannel: the frame is not in hand")
	// ErrUnfinished means that the consumer cannot store a fence yet, because it would overwrite another fence that is not reached: see
	// [Consumer.Release].
	ErrUnfinished = errors.New("shmchannel: an earlier fence is not reached")
)

// FullError says why the channel cannot accept a frame now. It wraps [ErrFull].
type FullError struct {
	Number    uint64 // number that the rejected frame would have got
	Consumer  Peer   // in a broadcast: the slowest consumer, which has not released frame Floor
	Floor     uint64 // number of the first frame that Consumer has not released
	Waiting   int    // in a queue: number of frames that wait for a consumer
	Consumers int    // if Waiting is not 0: number of consumers of the queue
}

func (e *FullError) Error() string {
	if e.Consumer.ID != 0 {
		return fmt.Sprintf("%v: no room for frame %d: consumer %d (process %d) has not released frame %d",
			ErrFull, e.Number, e.Consumer.ID, e.Consumer.PID, e.Floor)
	}
	return fmt.Sprintf("%v: no room for frame %d: %d frames wait", ErrFull, e.Number, e.Waiting)
}

func (e *FullError) Unwrap() error { return ErrFull }

// UnknownMemberError names the member whose file is missing. It wraps [ErrUnknownMember]. The caller waits for the file, passes it to
// AddTrack or AddCursor, and repeats the call that failed.
type UnknownMemberError struct {
	Role Role
	Seat int
	ID   uint64
}

func (e *UnknownMemberError) Error() string {
	return fmt.Sprintf("%v: %v %d in seat %d", ErrUnknownMember, e.Role, e.ID, e.Seat)
}

func (e *UnknownMemberError) Unwrap() error { return ErrUnknownMember }

// FrameError says which frame is unusable and why. It wraps [ErrFrame].
type FrameError struct {
	Number   uint64
	Producer int // seat of the producer
	Reason   string
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("%v: frame %d of the producer in seat %d: %s", ErrFrame, e.Number, e.Producer, e.Reason)
}

func (e *FrameError) Unwrap() error { return ErrFrame }

// UndeliverableError says which frame is not delivered any more. It wraps [ErrUndeliverable].
type UndeliverableError struct {
	Number, Deliveries uint64
}

func (e *UndeliverableError) Error() string {
	return fmt.Sprintf("%v: frame %d, %d times", ErrUndeliverable, e.Number, e.Deliveries)
}

func (e *UndeliverableError) Unwrap() error { return ErrUndeliverable }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
