package rig

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// settle is the code that each program of Abroad runs first. It imports the packages before it changes the user, because
// the other user may not be able to read their files. It mounts /proc, because the driver reads files about its own process there.
const settle = `
import ctypes, os, numpy, poolbridge
try:
    import cuda.core, poolbridge._memory.kind_device
except ImportError:
    pass
_mounts = ((b"", b"/", b"", 1 << 18 | 1 << 14), (b"tmpfs", b"/dev/shm", b"tmpfs", 0), (b"proc", b"/proc", b"proc", 0))
_libc = ctypes.CDLL(None, use_errno=True)
for _source, _target, _type, _flags in _mounts:
    if _libc.mount(_source, _target, _type, _flags, b""):
        raise OSError(ctypes.get_errno(), "mount", _target)
if %[1]d:
    os.setgroups([])
    os.setgid(%[1]d)
    os.setuid(%[1]d)
`

// Abroad returns an interpreter like p, but its programs run as the user in the parameter user. They have their own PID, mount and IPC
// namespaces, and their own /dev/shm. If this process is not root, the programs run as the user of this process. If namespaces are not
// possible, Abroad skips the test.
func (p *Interpreter) Abroad(t testing.TB, user int) *Interpreter {
	t.Helper()
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
	if os.Geteuid() != 0 {
		user = 0
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	there := &Interpreter{Path: p.Path, first: fmt.Sprintf(settle, user), where: attr}
	cmd := exec.Command(p.Path, "-c", there.first)
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("namespaces need root, or user namespaces that may mount: %v: %s", err, out)
	}
	return there
}
