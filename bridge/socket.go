package bridge

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/internal/typed"
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
	return sharedSocket()
}

// sharedSocket returns the default path in the folder for temporary files, which all users share.
func sharedSocket() string {
	return filepath.Join(os.TempDir(), "poolbridge-"+strconv.Itoa(os.Getuid()), "poolsvc.sock")
}

// checkServer refuses a service of another user at this user's default path in the shared folder. A service of root is accepted.
func checkServer(conn *seqpacket.Conn, path string) error {
	if path != sharedSocket() {
		return nil
	}
	peer, err := conn.Peer()
	if err != nil {
		return err
	}
	if own := os.Getuid(); peer.UID != 0 && int(peer.UID) != own {
		return typed.Errorf(ErrDenied, "the service at %s is of user %d, expected user %d or root: every user can make that folder; set POOLBRIDGE_SOCKET "+
			"to a path in a folder that only you can write; to use the service of user %[2]d, have it listen at a path without your number", path, peer.UID, own)
	}
	return nil
}
