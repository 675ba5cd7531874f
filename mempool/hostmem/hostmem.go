// Package hostmem finds out how much more memory of the machine this process can take. The kernel lets processes allocate more memory than
// the machine has. If the processes then use all of it, the kernel kills a process: this process or another one. So this process asks
// package hostmem before it takes much memory.
//
// There are several limits: the memory that the machine has left, and the memory that each control group of this process (v1 or v2) has
// left. From each limit, the package subtracts a reserve for other processes. Memory with the content of files counts as left if the kernel
// can reclaim it. Swap does not count as left.
package hostmem

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/poolbridge/poolbridge/internal/bytesize"
)

// Reserve returns how many bytes of a limit this process does not take, so that other processes can use them: one sixteenth of the limit,
// but at most 1 GiB.
func Reserve(total uint64) uint64 { return min(total/16, 1<<30) }

// Bound is one of the limits on this process's memory, in bytes.
type Bound struct {
	// Name is "the machine", or the path of the file that contains the limit.
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
	// Asked is the number of bytes that the caller asked for. Available is the number of bytes that the limit leaves, minus the reserve.
	Asked, Available uint64
	// Limit is the limit that leaves the fewest bytes.
	Limit Bound
	// Never means that the memory would not be enough even if no other process used memory.
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

// Memory describes the memory of the machine that this process may take. It counts the bytes that its callers are about to take, so that
// two callers do not take the same bytes.
type Memory struct {
	system system

	mu      sync.Mutex
	claimed uint64    // bytes of running Takes that are not taken yet
	limit   Bound     // the limit that left the least when the system was last asked
	asked   time.Time // when the system was last asked
	since   uint64    // bytes claimed since then, plus those claimed at that time
}

// New returns the memory of this machine. It opens the files of the kernel that say how much memory is left, and Close closes them.
func New() *Memory {
	m := At("/")
	_, _ = m.system.bounds() // each Take and Fits finds the error again
	return m
}

// Close closes the files of the kernel.
func (m *Memory) Close() { m.system.files.close() }

// At does the same as New, but reads /proc and the control groups below the folder `root`. Tests call At.
func At(root string) *Memory { return &Memory{system: newSystem(root)} }

// Fits returns an error if this process could not get size bytes even if no other process used memory.
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

// Take checks that size bytes are available. Then it calls the function `take` again and again: each call takes at most `part` bytes, until
// the caller has size bytes. Before each further call, Take checks again that the remaining bytes are available, because other processes
// take memory too.
//
// Errors: *[Shortage], [ErrUnknown]; the errors of `take`. If Take returns an error, the caller must give back the parts that `take` has
// taken.
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

// When Memory has asked the system how much memory is left, it uses the answer for the time `belief`, but only if much more memory was left
// than a caller asks for. It does not ask each time, because asking takes longer than taking a little memory.
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
