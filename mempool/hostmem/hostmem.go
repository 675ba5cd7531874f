// Package hostmem finds out how much more memory of the machine this process can take. The kernel promises more memory than there is. If it
// cannot keep the promise, it kills processes: this one, or others that have nothing to do with it. So this process asks before it takes much
// memory.
//
// The limits are what the machine has left, and what every control group of this process has left (v1 and v2), less a reserve for other
// processes. Memory of files that the kernel can reclaim counts as left. Swap does not.
package hostmem

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
)

// Reserve returns how many bytes of a limit are left to other processes: one sixteenth, but at most 1 GiB.
func Reserve(total uint64) uint64 { return min(total/16, 1<<30) }

// Bound is one of the limits on this process's memory, in bytes.
type Bound struct {
	// Name is "the machine", or the file that sets the limit.
	Name string
	// Total is the limit. Left is the unused part of it.
	Total, Left uint64
}

// available returns how many bytes can be taken now, ever how many if nothing else were using memory.
func (b Bound) available() uint64 { return b.Left - min(b.Left, Reserve(b.Total)) }
func (b Bound) ever() uint64      { return b.Total - Reserve(b.Total) }

// ErrUnknown means that the system's files do not say how much memory there is.
var ErrUnknown = errors.New("the amount of memory that is left is unknown")

// Shortage means that there is less memory than a caller asked for.
type Shortage struct {
	// Asked and Available are bytes. Available is what the limit leaves, less the reserve.
	Asked, Available uint64
	// Limit is the limit that leaves the least.
	Limit Bound
	// Never means that the memory would not suffice even if no other process used any.
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

// Memory is the memory of the machine for one process. It counts what its callers are about to take, so that two callers do not rely on
// the same bytes.
type Memory struct {
	system system

	mu      sync.Mutex
	claimed uint64    // bytes of running Takes that are not taken yet
	limit   Bound     // the limit that left the least when the system was last asked
	asked   time.Time // when the system was last asked
	since   uint64    // bytes claimed since then, plus those claimed at that time
}

// New returns the memory of this machine.
func New() *Memory { return At("/") }

// At is New for a machine whose /proc and control groups are below the folder root.
func At(root string) *Memory { return &Memory{system: newSystem(root)} }

// Fits returns an error if this process could not have size bytes even if no other process used any.
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

// Take calls take for size bytes, part by part, if the bytes are available. Before each further part it checks again that the rest is
// available, because other processes take memory too.
//
// Errors: *[Shortage], [ErrUnknown]; those of take. The caller must then give back the parts that were taken.
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

// An answer of the system counts for a moment, if it left much more than a caller asks for. Asking takes longer than taking a little
// memory.
const (
	belief = 100 * time.Millisecond
	little = 64 // little is at most this fraction of what is available: 1/64
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

// check returns an error if the claimed bytes are not all available any more. done of size bytes are taken already.
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

// short returns an error if the claimed bytes are not available. The caller holds m.mu.
func (m *Memory) short(size, done uint64) error {
	available := m.limit.available()
	if m.since <= available {
		return nil
	}
	others := m.since - (size - done)
	return &Shortage{Asked: size, Available: done + available - min(available, others), Limit: m.limit}
}

// ask asks the system. The caller holds m.mu.
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
