package rig

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// ownNamespaces is what a program abroad shares with nobody.
const ownNamespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC

// settle is what a program abroad does first. The driver looks itself up in /proc; what it needs is loaded while it may
// still read everything.
const settle = `
import ctypes, os, numpy, poolbridge
try:
    import cuda.core, poolbridge._kind_device
except ImportError:
    pass
_mounts = ((b"", b"/", b"", 1 << 18 | 1 << 14), (b"tmpfs", b"/dev/shm", b"tmpfs", 0), (b"proc", b"/proc", b"proc", 0))
_libc = ctypes.CDLL(None, use_errno=True)
for _source, _target, _type, _flags in _mounts:
    if _libc.mount(_source, _target, _type, _flags, b""):
        raise OSError(ctypes.get_errno(), "mount", _target)
os.setgroups([])
os.setgid(%[1]d)
os.setuid(%[1]d)
`

// Abroad is the same interpreter for programs that run as another user, in PID, mount and IPC namespaces of their own and
// with a /dev/shm that they share with nobody. The test is skipped where that cannot be.
func (p *Interpreter) Abroad(t testing.TB, user int) *Interpreter {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for programs of other users in other namespaces")
	}
	cmd := exec.Command(p.Path, "-c", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces}
	if err := cmd.Run(); errors.Is(err, syscall.EPERM) {
		t.Skip("namespaces are not permitted here: ", err)
	}
	return &Interpreter{Path: p.Path, user: user}
}
