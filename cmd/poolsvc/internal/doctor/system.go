package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// deviceFiles examines whether this user may open the device files of the GPUs.
func (c *chart) deviceFiles() {
	files, _ := filepath.Glob("/dev/nvidia*")
	var closed []string
	found := 0
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
			continue
		}
		found++
		if unix.Access(path, unix.R_OK|unix.W_OK) != nil {
			closed = append(closed, path)
		}
	}
	switch {
	case len(closed) > 0:
		c.missing("device files", "let this user read and write them (often the group video)", "no access to %s", strings.Join(closed, ", "))
	case found == 0:
		c.warn("device files", "in a container pass the GPUs through (--gpus all, or the device files themselves)", "there is no /dev/nvidia*")
	default:
		c.ok("device files", "%d, all open to this user", found)
	}
	if _, err := os.Stat("/dev/nvidia-uvm"); found > 0 && err != nil {
		c.missing("device files", "load nvidia-uvm (nvidia-modprobe -u), or pass the file into the container", "/dev/nvidia-uvm: CUDA needs it")
	}
}

// kernel examines whether the Linux kernel has what the service needs.
func (c *chart) kernel() {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		c.missing("kernel", "", "%v", err)
		return
	}
	c.ok("kernel", "Linux %s", unix.ByteSliceToString(u.Release[:]))
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		c.missing("pidfd", "use Linux 5.3 or newer: without it the end of a client cannot be watched", "%v", err)
		return
	}
	_ = unix.Close(fd)
	c.ok("pidfd", "the end of a client's process can be watched")
}

// namespaces examines whether this process is in the same namespaces as process 1.
func (c *chart) namespaces() {
	var shared, hidden []string
	for _, ns := range []struct{ name, matters string }{
		{"pid", "process ids in reports differ between namespaces; sharing works"},
		{"ipc", "interprocess events do not cross it; pools, VMM and fences do"},
		{"mnt", "the socket must be mounted into the other namespace; sharing works"},
		{"user", "user ids differ between namespaces: list them in the pool as the service sees them"},
	} {
		mine, err := os.Readlink("/proc/self/ns/" + ns.name)
		if err != nil {
			c.warn(ns.name+" namespace", "mount /proc", "%v", err)
			continue
		}
		first, err := os.Readlink("/proc/1/ns/" + ns.name)
		switch {
		case err != nil: // in containers and sandboxes often also for root
			hidden = append(hidden, ns.name)
		case first == mine:
			shared = append(shared, ns.name)
		default:
			c.warn(ns.name+" namespace", ns.matters, "%s, not that of process 1", mine)
		}
	}
	if len(shared) > 0 {
		c.ok("namespaces", "shared with process 1: %s", strings.Join(shared, ", "))
	}
	if len(hidden) > 0 {
		c.ok("namespaces", "the kernel does not show whether process 1 shares them: %s", strings.Join(hidden, ", "))
	}
}

// sharedMemory examines /dev/shm and memfds.
func (c *chart) sharedMemory() {
	if unix.Access("/dev/shm", unix.R_OK|unix.W_OK|unix.X_OK) != nil {
		c.warn("/dev/shm", "interprocess events need it, shared by all who use them; everything else does not", "not open to this user")
	} else {
		var st unix.Statfs_t
		size := ""
		if unix.Statfs("/dev/shm", &st) == nil {
			size = fmt.Sprintf(", %d MiB", st.Blocks*uint64(st.Bsize)>>20)
		}
		c.ok("/dev/shm", "open to this user%s; interprocess events work with processes of this user that see the same one", size)
	}
	fd, err := unix.MemfdCreate("poolbridge-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		c.missing("memfd", "kind host needs memfd_create with sealing (Linux 3.17)", "%v", err)
		return
	}
	_ = unix.Close(fd)
	c.ok("memfd", "works: kind host can be used")
}

// minFiles is how many descriptors are enough for a service with a few hundred sessions.
const minFiles = 4096

// minLocked is how many bytes of locked memory are enough for the pages that the GPU must access.
const minLocked = 64 << 10

// limits examines the limits of this process.
func (c *chart) limits() {
	var files, locked unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		if files.Max < minFiles {
			c.warn("open files", "raise it (ulimit -Hn, LimitNOFILE=): a session takes three", "at most %d", files.Max)
		} else {
			c.ok("open files", "%d, can be raised to %d", files.Cur, files.Max)
		}
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked); err == nil {
		switch {
		case locked.Cur == unix.RLIM_INFINITY:
			c.ok("locked memory", "unlimited")
		case locked.Cur < minLocked:
			c.warn("locked memory", "raise it (ulimit -l, LimitMEMLOCK=): a page of counters is locked for each session",
				"%d KiB", locked.Cur>>10)
		default:
			c.ok("locked memory", "%d KiB; sharing needs less than 64 KiB", locked.Cur>>10)
		}
	}
}
