package bridge

import (
	"os"
	"path/filepath"
	"strconv"
)

// DefaultSocket is where the service listens and clients look: $POOLBRIDGE_SOCKET, else poolbridge/poolsvc.sock below
// $XDG_RUNTIME_DIR, else poolbridge-UID/poolsvc.sock below $TMPDIR, or below /tmp.
func DefaultSocket() string {
	if path := os.Getenv("POOLBRIDGE_SOCKET"); path != "" {
		return path
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "poolbridge", "poolsvc.sock")
	}
	return filepath.Join(os.TempDir(), "poolbridge-"+strconv.Itoa(os.Getuid()), "poolsvc.sock")
}
