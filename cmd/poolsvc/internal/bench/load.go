package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// load returns the kernel's average of runnable programs over the last minute.
func load() (float64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("asking the kernel for its load: %w", err)
	}
	return float64(info.Loads[0]) / (1 << 16), nil // SI_LOAD_SHIFT
}
