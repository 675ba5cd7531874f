package driverfacts_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// patience is the time limit of every call to a worker. Without a limit, a stream that waits for ever would also make
// the test wait for ever.
const patience = 60 * time.Second

// process is the test's side of a worker: the worker's process and the connection to the worker.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	conn   *net.UnixConn
	stderr strings.Builder
	killed bool
}

// setting says in which ways a worker differs from the test's own process.
type setting struct {
	device     int
	namespaces bool   // the worker has its own PID, mount and IPC namespaces, and an empty /dev/shm
	privateShm bool   // the worker has only its own empty /dev/shm
	uid        int    // user of the worker; 0: the user of the test
	memlock    uint64 // RLIMIT_MEMLOCK in bytes; 0: the limit of the test
}

// start starts a worker. The worker ends when the test ends.
func start(t testing.TB, set setting) *process {
	t.Helper()
	if (set.namespaces || set.privateShm || set.uid != 0) && os.Geteuid() != 0 {
		t.Skip("needs root, for a process in other namespaces or of another user")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	theirs := os.NewFile(uintptr(fds[1]), "worker")
	defer theirs.Close()
	p := &process{t: t, cmd: exec.Command("/proc/self/exe")}
	p.conn, err = connection(fds[0])
	require.NoError(t, err)
	p.cmd.ExtraFiles = []*os.File{theirs}
	p.cmd.Stderr = &p.stderr
	p.cmd.Env = append(os.Environ(), workerVariable+"=1",
		"GORACE=atexit_sleep_ms=0", // otherwise the race detector sleeps for a second at the end of each worker
		workerVariable+"_DEVICE="+strconv.Itoa(set.device),
		workerVariable+"_UID="+strconv.Itoa(set.uid),
		workerVariable+"_MEMLOCK="+strconv.FormatUint(set.memlock, 10))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	switch {
	case set.namespaces:
		p.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC
		p.cmd.Env = append(p.cmd.Env, workerVariable+"_PROC=1")
	case set.privateShm:
		p.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	if p.cmd.SysProcAttr.Cloneflags != 0 {
		p.cmd.Env = append(p.cmd.Env, workerVariable+"_SHM=1")
	}
	if err := p.cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skip("namespaces are not permitted here: ", err)
		}
		require.NoError(t, err)
	}
	t.Cleanup(p.stop)
	if _, err := p.do(call{Op: "hello"}); err != nil {
		if p.exit(); strings.Contains(p.stderr.String(), "not permitted") {
			t.Skip("not permitted here: ", p.stderr.String())
		}
		t.Fatalf("the worker did not start: %v: %s", err, p.stderr.String())
	}
	return p
}

// do makes the worker do an operation. The error is an error of the driver, or it says that the worker is gone.
func (p *process) do(c call, fds ...int) (reply, error) {
	r, got, err := p.doFD(c, fds...)
	for _, fd := range got {
		unix.Close(fd)
	}
	return r, err
}

// doFD is like do, for operations whose replies have descriptors. The caller must close the descriptors.
func (p *process) doFD(c call, fds ...int) (reply, []int, error) {
	p.t.Helper()
	var r reply
	if err := send(p.conn, c, fds...); err != nil {
		return r, nil, fmt.Errorf("the worker is gone: %w", err)
	}
	require.NoError(p.t, p.conn.SetReadDeadline(time.Now().Add(patience)))
	got, err := receive(p.conn, &r)
	if err != nil {
		return r, nil, fmt.Errorf("the worker does not answer: %w: %s", err, p.stderr.String())
	}
	if r.Result != cuda.Success {
		return r, got, &cuda.Error{Op: c.Op, Device: -1, Result: r.Result, Detail: r.Error}
	}
	if r.Error != "" {
		return r, got, errors.New(r.Error)
	}
	return r, got, nil
}

// must is like do, but the test fails if the operation fails.
func (p *process) must(c call, fds ...int) reply {
	p.t.Helper()
	r, err := p.do(c, fds...)
	require.NoError(p.t, err, c.Op)
	return r
}

// mustFD is like must, for operations whose replies have one descriptor. The descriptor is closed when the test ends.
func (p *process) mustFD(c call) int {
	p.t.Helper()
	_, fds, err := p.doFD(c)
	require.NoError(p.t, err, c.Op)
	require.Len(p.t, fds, 1)
	fd := fds[0]
	p.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// kill ends the worker with SIGKILL, as the kernel does when memory runs out.
func (p *process) kill() {
	p.t.Helper()
	p.killed = true
	require.NoError(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
}

// stop closes the connection, so that the worker ends. If the worker ends with an error, the test fails.
func (p *process) stop() {
	p.conn.Close()
	if p.killed {
		return
	}
	if err := p.exit(); err != nil && !p.t.Skipped() {
		p.t.Errorf("the worker ended with %v: %s", err, p.stderr.String())
	}
}

func (p *process) exit() error {
	if p.killed {
		return nil
	}
	p.killed = true
	p.conn.Close()
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	return p.cmd.Wait()
}
