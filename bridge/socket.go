package bridge

import (
	"os"
	"path/filepath"
	"strconv"
)

// DefaultSocket returns the path on which the service listens and clients connect by default: $POOLBRIDGE_SOCKET, or else
// poolbridge/poolsvc.sock below $XDG_RUNTIME_DIR, or else poolbridge-UID/poolsvc.sock below $TMPDIR or /tmp.
func DefaultSocket() string {
	if path := os.Getenv("POOLBRIDGE_SOCKET"); path != "" {
		return path
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "poolbridge", "poolsvc.sock")
	}
	return filepath.Join(os.TempDir(), "poolbridge-"+strconv.Itoa(os.Getuid()), "poolsvc.sock")
}
