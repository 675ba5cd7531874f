package shmring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Ring is one end: it writes into its own file and reads from the peer's. One goroutine at a time may write and one may
// read; what they call is said below.
type Ring struct {
	own, peer region

	head uint64 // of the own ring
	tail uint64 // of the peer's
}

// Files are the two descriptors that a peer needs to open its end. The receiver owns them and must close them.
type Files struct {
	Reads  *os.File // what the peer reads from
	Writes *os.File // what the peer writes into
}

// Close closes both files.
func (f Files) Close() error { return errors.Join(f.Reads.Close(), f.Writes.Close()) }

// New makes a ring and what the peer needs. Nobody but this end can write into its file.
func New() (*Ring, Files, error) {
	mine, err := newFile("poolbridge:ring")
	if err != nil {
		return nil, Files{}, err
	}
	theirs, err := newFile("poolbridge:ring")
	if err != nil {
		return nil, Files{}, errors.Join(err, mine.Close())
	}
	files := Files{Reads: mine, Writes: theirs}
	r, err := newRing(mine, theirs)
	if err == nil {
		err = seal(mine, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}
	if err != nil {
		return nil, Files{}, errors.Join(err, files.Close())
	}
	return r, files, nil
}

// Open makes the other end. The files stay the caller's, and may be closed.
//
// Errors: [ErrUnsealed] for files that are not those of a ring; the system's.
func Open(f Files) (*Ring, error) { return newRing(f.Writes, f.Reads) }

func newRing(own, peer *os.File) (*Ring, error) {
	a, err := mapFile(own, true)
	if err != nil {
		return nil, err
	}
	b, err := mapFile(peer, false)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(a))
	}
	return &Ring{own: a, peer: b}, nil
}

// Close unmaps the ring. Nobody may use it any more.
func (r *Ring) Close() error {
	err := errors.Join(os.NewSyscallError("munmap", unix.Munmap(r.own)), os.NewSyscallError("munmap", unix.Munmap(r.peer)))
	r.own, r.peer = nil, nil
	return err
}

// Writing

// Put writes a packet. ok is false, and nothing was written, if there is no room for it; wake says that the reader sleeps.
//
// Errors: [ErrCorrupt].
func (r *Ring) Put(packet []byte) (ok, wake bool, err error) {
	free, err := r.free()
	if err != nil {
		return false, false, err
	}
	need := uint64(headBytes + padded(len(packet)))
	rest := Size - r.head%Size
	skips := need > rest
	whole := need
	if skips {
		whole += rest
	}
	// There is always room for a mark.
	if len(packet) == 0 || len(packet) > MaxPacket || whole+headBytes > free {
		return false, false, nil
	}
	before := r.head
	if skips {
		binary.LittleEndian.PutUint64(r.own.data(r.head), skip)
		r.head += rest
	}
	at := r.own.data(r.head)
	binary.LittleEndian.PutUint64(at, uint64(len(packet)))
	copy(at[headBytes:], packet)
	r.head += need
	return true, r.publish(before), nil
}

// Mark tells the reader that the next packets come another way, until it is told otherwise there.
func (r *Ring) Mark() {
	binary.LittleEndian.PutUint64(r.own.data(r.head), mark)
	before := r.head
	r.head += headBytes
	r.publish(before)
}

// Drained says whether the reader has read everything.
//
// Errors: [ErrCorrupt].
func (r *Ring) Drained() (bool, error) {
	free, err := r.free()
	return free == Size, err
}

func (r *Ring) free() (uint64, error) {
	tail := r.peer.word(tailOffset).Load()
	used := r.head - tail
	if used > Size || tail%8 != 0 {
		return 0, fmt.Errorf("%w: its reader is at %d, and %d was written", ErrCorrupt, tail, r.head)
	}
	return Size - used, nil
}

// publish shows the reader what was written since the head was before, and says whether it sleeps. The word of a reader
// that sleeps names the head that it saw, so that it is woken once.
func (r *Ring) publish(before uint64) (asleep bool) {
	r.own.word(headOffset).Store(r.head)
	return r.peer.word(asleepOffset).Load() == before+1
}

func padded(n int) int { return (n + 7) &^ 7 }

// Reading

// Kind is what was found in a ring.
type Kind int

// What Take finds.
const (
	Nothing Kind = iota
	Packet
	Marked // the next packets come another way
)

// Empty says whether there is nothing to take.
func (r *Ring) Empty() bool { return r.peer.word(headOffset).Load() == r.tail }

// Take takes the next packet into buf, which must have room for [MaxPacket].
//
// Errors: [ErrCorrupt].
func (r *Ring) Take(buf []byte) (n int, kind Kind, err error) {
	head := r.peer.word(headOffset).Load()
	for {
		there := head - r.tail
		switch {
		case there == 0:
			return 0, Nothing, nil
		case there > Size || there%8 != 0:
			return 0, Nothing, fmt.Errorf("%w: its writer is at %d, and %d was read", ErrCorrupt, head, r.tail)
		}
		at := r.peer.data(r.tail)
		length := binary.LittleEndian.Uint64(at)
		switch {
		case length == mark:
			r.read(headBytes)
			return 0, Marked, nil
		case length == skip && r.tail%Size != 0 && uint64(len(at)) <= there:
			r.read(uint64(len(at)))
			continue
		case length > MaxPacket || headBytes+padded(int(length)) > len(at) || uint64(headBytes+padded(int(length))) > there:
			return 0, Nothing, fmt.Errorf("%w: a packet of %d bytes where %d were written", ErrCorrupt, length, there)
		}
		n = copy(buf, at[headBytes:headBytes+int(length)])
		r.read(uint64(headBytes + padded(int(length))))
		return n, Packet, nil
	}
}

func (r *Ring) read(n uint64) {
	r.tail += n
	r.own.word(tailOffset).Store(r.tail)
}

// Sleep says that the reader is about to sleep; if it returns false there is something to take, and it must not.
func (r *Ring) Sleep() bool {
	r.own.word(asleepOffset).Store(r.tail + 1)
	if r.Empty() {
		return true
	}
	r.Wake()
	return false
}

// Wake says that the reader does not sleep any more.
func (r *Ring) Wake() { r.own.word(asleepOffset).Store(0) }
