// Package hostmem says how much memory of the machine this process can still take. The kernel promises more than there is,
// and kills processes when it cannot keep the promise: this process, or others that have no part in it. So this process asks
// before it takes much memory.
//
// What counts is what the machine has left, and what every control group that this process is in has left (v1 and v2),
// less a reserve for everybody else. Memory of files that the kernel gives up when it is wanted counts as left, swap does
// not.
package hostmem

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
)

// Reserve is how many bytes of a limit are left to others: one sixteenth, and 1 GiB at most.
func Reserve(total uint64) uint64 { return min(total/16, 1<<30) }

// Bound is one of the limits on this process's memory, in bytes.
type Bound struct {
	// Name is "the machine", or the file that sets the limit.
	Name string
	// Total is the limit. Left is what is not used of it.
	Total, Left uint64
}

// available is what can be taken now, ever what could be taken if nobody used anything.
func (b Bound) available() uint64 { return b.Left - min(b.Left, Reserve(b.Total)) }
func (b Bound) ever() uint64      { return b.Total - Reserve(b.Total) }

// ErrUnknown says that the system's files do not say how much memory there is.
var ErrUnknown = errors.New("how much memory is left cannot be told")

// Shortage says that there is less memory than was asked for.
type Shortage struct {
	// Asked and Available are bytes. Available is what the limit leaves, less the reserve.
	Asked, Available uint64
	// Limit is the limit that counts: the one that leaves the least.
	Limit Bound
	// Never says that the limit would not leave as much if nobody used anything.
	Never bool
}

func (s *Shortage) Error() string {
	asked, available, reserve := bytesize.Text(s.Asked), bytesize.Text(s.Available), bytesize.Text(Reserve(s.Limit.Total))
	total := bytesize.Text(s.Limit.Total)
	if s.Never {
		return fmt.Sprintf("%s are asked for, and at most %s can ever be available: %s has %s, and %s of them are left to others; ask for fewer",
			asked, available, s.Limit.Name, total, reserve)
	}
	return fmt.Sprintf("%s are asked for, and %s are available: %s has %s left of %s, and %s of them are left to others; ask for fewer, "+
		"or free memory", asked, available, s.Limit.Name, bytesize.Text(s.Limit.Left), total, reserve)
}

// Memory is the machine's memory as one process sees it. It knows what its callers are about to take, so that two of them
// do not both count on the same bytes.
type Memory struct {
	system system

	mu      sync.Mutex
	claimed uint64    // that Take was called for, and that are not taken yet
	limit   Bound     // that left the least when the system was asked last
	asked   time.Time // when that was
	since   uint64    // claimed since then, and what was claimed by then
}

// New is the memory of the machine that this process runs on.
func New() *Memory { return At("/") }

// At is New for a machine whose /proc and control groups lie below the folder root.
func At(root string) *Memory { return &Memory{system: newSystem(root)} }

// Fits says whether this process could have size bytes if nobody used anything.
//
// Errors: *[Shortage], [ErrUnknown].
func (m *Memory) Fits(size uint64) error {
	bounds, err := m.system.bounds()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	least := bounds[0]
	for _, b := range bounds {
		if b.ever() < least.ever() {
			least = b
		}
	}
	if size > least.ever() {
		return &Shortage{Asked: size, Available: least.ever(), Limit: least, Never: true}
	}
	return nil
}

// Take calls take for size bytes, for one part after the other, if the bytes are there. Before every part it makes sure
// that what is yet to be taken is still there: other processes take memory too.
//
// Errors: *[Shortage], [ErrUnknown]; that of take. The caller gives back what was taken before.
func (m *Memory) Take(size, part uint64, take func(off, n uint64) error) error {
	if err := m.claim(size); err != nil {
		return err
	}
	done := uint64(0)
	defer func() { m.unclaim(size - done) }()
	for done < size {
		if done > 0 {
			if err := m.check(size, done); err != nil {
				return err
			}
		}
		n := min(part, size-done)
		if err := take(done, n); err != nil {
			return err
		}
		m.unclaim(n) // from now on the system counts it
		done += n
	}
	return nil
}

// What the system said is believed for a moment, where it left much more than is asked for: to ask it takes longer than to
// take little.
const (
	belief = 100 * time.Millisecond
	little = 64 // is the 64th part of what is available
)

// claim counts size bytes as about to be taken.
func (m *Memory) claim(size uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	available := m.limit.available()
	if time.Since(m.asked) > belief || m.since > available || size > (available-m.since)/little {
		if err := m.ask(); err != nil {
			return err
		}
	}
	m.since += size
	if err := m.short(size, 0); err != nil {
		m.since -= size
		return err
	}
	m.claimed += size
	return nil
}

// check says whether all that is claimed is still there. Of size bytes done are taken already.
func (m *Memory) check(size, done uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ask(); err != nil {
		return err
	}
	return m.short(size, done)
}

func (m *Memory) unclaim(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claimed -= n
}

// short says that what is claimed is not there. m.mu is held.
func (m *Memory) short(size, done uint64) error {
	available := m.limit.available()
	if m.since <= available {
		return nil
	}
	others := m.since - (size - done)
	return &Shortage{Asked: size, Available: done + available - min(available, others), Limit: m.limit}
}

// ask asks the system. m.mu is held.
func (m *Memory) ask() error {
	bounds, err := m.system.bounds()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	m.limit = bounds[0]
	for _, b := range bounds {
		if b.available() < m.limit.available() {
			m.limit = b
		}
	}
	m.asked, m.since = time.Now(), m.claimed
	return nil
}
