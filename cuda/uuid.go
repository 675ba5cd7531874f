package cuda

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// UUID identifies a GPU, or a part of a GPU. The UUID is the same in all processes and containers, and after a reboot. The ordinal of a GPU can
// differ between processes, because CUDA_VISIBLE_DEVICES renumbers the GPUs.
type UUID [16]byte

const uuidPrefix = "GPU-"

// String returns the UUID in the form that NVIDIA's tools print: "GPU-" and 8-4-4-4-12 hex digits.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return uuidPrefix + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseUUID reads a UUID in the form that [UUID.String] returns. The text may also have the prefix "MIG-" or no prefix, and its digits may be
// upper or lower case.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	t := strings.TrimPrefix(strings.TrimPrefix(s, uuidPrefix), "MIG-")
	if len(t) != 36 || t[8] != '-' || t[13] != '-' || t[18] != '-' || t[23] != '-' {
		return UUID{}, fmt.Errorf("cuda: %q is not the UUID of a GPU: %w", s, ErrInvalidValue)
	}
	digits := t[:8] + t[9:13] + t[14:18] + t[19:23] + t[24:]
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, fmt.Errorf("cuda: %q is not the UUID of a GPU: %w", s, ErrInvalidValue)
	}
	return u, nil
}

// MarshalText returns the text of String.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads a UUID from a text that ParseUUID accepts.
func (u *UUID) UnmarshalText(text []byte) error {
	v, err := ParseUUID(string(text))
	if err != nil {
		return err
	}
	*u = v
	return nil
}
