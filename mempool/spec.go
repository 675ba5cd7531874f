package mempool

import (
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/poolbridge/poolbridge/internal/bytesize"
	"github.com/poolbridge/poolbridge/internal/situation"
)

// MaxNameBytes is the length of the longest name of a pool or buffer, in bytes.
const MaxNameBytes = 255

// PoolSpec describes a pool to be made. It is plain data.
type PoolSpec struct {
	Name string
	Kind Kind
	// Device is an ordinal ("0") or a UUID ("GPU-…"); empty for the first device. Kinds without a device want it empty.
	Device string
	// MaxBytes is the most that the pool's blocks take together.
	MaxBytes uint64
	// SessionBytes is the most that counts for one session, and UserBytes for all of a user's; 0 for no limit of its own. A
	// block counts for the session that allocated the buffer in it. A free block counts for the process that keeps others from
	// having it, and so for each of its sessions: by work that is under way on it, by a lease of a session that has ended
	// while the process lives, or by a mapping that it was asked to give up.
	SessionBytes, UserBytes uint64
	// Access lists who may use the pool; empty for only the user who creates it.
	Access Access
}

// Validate says whether s describes a pool that some machine could make.
//
// Errors: [ErrInvalid].
func (s PoolSpec) Validate() error {
	if err := ValidateName("pool", s.Name); err != nil {
		return err
	}
	if _, err := s.Kind.backend(); err != nil {
		return err
	}
	if s.MaxBytes == 0 || s.MaxBytes > math.MaxInt64 {
		return situation.Of(ErrInvalid, "pool %q: the most bytes it may take must lie between 1 and 2^63-1, not %d", s.Name, s.MaxBytes)
	}
	if s.SessionBytes > s.MaxBytes {
		return situation.Of(ErrInvalid, "pool %q: a session's limit of %s is more than the pool's %s", s.Name, bytesize.Text(s.SessionBytes),
			bytesize.Text(s.MaxBytes))
	}
	if s.UserBytes > s.MaxBytes {
		return situation.Of(ErrInvalid, "pool %q: a user's limit of %s is more than the pool's %s", s.Name, bytesize.Text(s.UserBytes),
			bytesize.Text(s.MaxBytes))
	}
	if s.UserBytes > 0 && s.SessionBytes > s.UserBytes {
		return situation.Of(ErrInvalid, "pool %q: a session's limit of %s is more than its user's %s", s.Name, bytesize.Text(s.SessionBytes),
			bytesize.Text(s.UserBytes))
	}
	return nil
}

// ValidateName checks the name of a pool, a buffer or a channel: what says which.
//
// Errors: [ErrInvalid].
func ValidateName(what, name string) error {
	switch {
	case name == "":
		return situation.Of(ErrInvalid, "the name of a %s must not be empty", what)
	case len(name) > MaxNameBytes:
		return situation.Of(ErrInvalid, "the name of a %s has at most %d bytes, this one %d", what, MaxNameBytes, len(name))
	case !utf8.ValidString(name):
		return situation.Of(ErrInvalid, "the name of a %s must be UTF-8", what)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return situation.Of(ErrInvalid, "the name %q of a %s has a control character", name, what)
		}
	}
	return nil
}
