package mempool

import (
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// PoolSpec describes a pool that a client wants to make.
type PoolSpec struct {
	Name string
	Kind Kind
	// Device is the ordinal ("0") or the UUID ("GPU-…") of the pool's GPU. An empty Device means the first GPU. For a kind without a
	// device, Device must be empty.
	Device string
	// MaxBytes is the greatest number of bytes that all blocks of the pool may take together.
	MaxBytes uint64
	// SessionBytes is the greatest number of bytes that may count for one session. UserBytes is the greatest number of bytes that may count
	// for all sessions of one user together. 0 means no limit. A block counts for the session that allocated the buffer in the block. A
	// free block counts for a process, and so for each session of the process, if the process prevents other processes from getting the
	// block. The process prevents this in three cases: its work on the block is still running; one of its sessions has ended with a lease
	// on the block, and the process still lives; or the service has asked the process to unmap the block, and the process has not done so
	// yet.
	SessionBytes, UserBytes uint64
	// Access lists the users and groups that may use the pool. If Access is empty, only the user who creates the pool may use the pool.
	Access Access
}

// Validate returns an error if the spec is wrong on every machine: no service could make such a pool.
//
// Errors: [ErrInvalid].
func (s PoolSpec) Validate() error {
	if err := ValidateName("pool", s.Name); err != nil {
		return err
	}
	if _, err := s.Kind.backend(); err != nil {
		return err
	}
	if s.Kind == Host && s.Device != "" {
		return typed.Errorf(ErrInvalid, "pool %q: memory of kind %q is on no device, not on %q: leave the device out", s.Name, Host, s.Device)
	}
	if s.MaxBytes == 0 || s.MaxBytes > math.MaxInt64 {
		return typed.Errorf(ErrInvalid, "pool %q: the most bytes it may take must lie between 1 and 2^63-1, not %d", s.Name, s.MaxBytes)
	}
	if s.SessionBytes > s.MaxBytes {
		return typed.Errorf(ErrInvalid, "pool %q: a session's limit of %s is more than the pool's %s", s.Name, bytesize.Text(s.SessionBytes),
			bytesize.Text(s.MaxBytes))
	}
	if s.UserBytes > s.MaxBytes {
		return typed.Errorf(ErrInvalid, "pool %q: a user's limit of %s is more than the pool's %s", s.Name, bytesize.Text(s.UserBytes),
			bytesize.Text(s.MaxBytes))
	}
	if s.UserBytes > 0 && s.SessionBytes > s.UserBytes {
		return typed.Errorf(ErrInvalid, "pool %q: a session's limit of %s is more than its user's %s", s.Name, bytesize.Text(s.SessionBytes),
			bytesize.Text(s.UserBytes))
	}
	return nil
}

// ValidateName checks the name of a pool, a buffer or a channel. The parameter `what` says which of these has the name, for example "pool";
// the text of the error contains `what`.
//
// Errors: [ErrInvalid].
func ValidateName(what, name string) error {
	switch {
	case name == "":
		return typed.Errorf(ErrInvalid, "the name of a %s must not be empty", what)
	case len(name) > MaxNameBytes:
		return typed.Errorf(ErrInvalid, "the name of a %s has at most %d bytes, this one has %d", what, MaxNameBytes, len(name))
	case !utf8.ValidString(name):
		return typed.Errorf(ErrInvalid, "the name of a %s must be UTF-8", what)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return typed.Errorf(ErrInvalid, "the name %q of a %s has a control character", name, what)
		}
	}
	return nil
}
