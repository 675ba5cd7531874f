package seqpacket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ownPlace refuses to make dir in the folder of another user: root would lock that user out of a folder such as $XDG_RUNTIME_DIR/poolbridge,
// for example by `sudo -E`.
func ownPlace(dir string) error {
	parent := filepath.Dir(dir)
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		return ownPlace(parent)
	}
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d, and %s, made by user %d, would lock that user out; start the service as user %d "+
			"(sudo without -E), or choose a folder of your own", ErrUnsafeDir, parent, owner, dir, os.Geteuid(), owner)
	}
	return nil
}

// safeDir makes dir if it does not exist. It makes sure that only root and the user of this process can make, rename or remove files in
// dir. If other users can write to dir, the sticky bit of dir is not enough protection: another user could make a file with the socket's
// name before the service makes its socket.
func safeDir(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := ownPlace(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		info, err = os.Stat(dir)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "listen", Path: dir, Err: syscall.ENOTDIR}
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%w: %s has mode %v; choose one that group and others cannot write, or one that does not exist yet",
			ErrUnsafeDir, dir, mode)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d; choose one that is yours", ErrUnsafeDir, dir, owner)
	}
	return nil
}
