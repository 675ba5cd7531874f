package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

func init() {
	children["abroad"] = abroad(func() error { return nil })
	children["produce abroad"] = abroad(produce)
	children["consume abroad"] = abroad(consume)
}

// userVariable is the name of an environment variable. Its value is the id of the user that a child changes to; 0 means that the child
// keeps its user.
const userVariable = "POOLBRIDGE_TEST_USER"

// The function `as` returns a function that changes the command of a child: the child runs as the user with the id `user`, with its own
// PID, mount and IPC namespaces. If this process is not root, the child keeps the user of this process.
func as(user int) func(*exec.Cmd) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
	if os.Geteuid() != 0 {
		user = 0
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, userVariable+"="+strconv.Itoa(user))
		cmd.SysProcAttr = attr
	}
}

// abroad returns a function for a child. The function first prepares the child's own namespaces and /dev/shm, and then calls the function
// `do`.
func abroad(do func() error) func() error {
	return func() error {
		user, err := strconv.Atoi(os.Getenv(userVariable))
		if err != nil {
			return err
		}
		err = errors.Join(
			os.NewSyscallError("mount /", unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")),
			os.NewSyscallError("mount /dev/shm", unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "")),
			// The driver reads the files of its own process in /proc. It does not start if /proc belongs to another PID namespace, so mount /proc
			// again.
			os.NewSyscallError("mount /proc", unix.Mount("proc", "/proc", "proc", 0, "")))
		if err == nil && user != 0 {
			err = errors.Join(syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user))
		}
		if err != nil {
			return err
		}
		return do()
	}
}

// mayLeave skips a test if this machine cannot start a process in new namespaces.
func mayLeave(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childRole+"=abroad")
	as(1)(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("namespaces need root, or user namespaces that may mount: %v: %s", err, out)
	}
}

func TestAStreamNeedsNoUserNamespaceOrSharedMemoryInCommon(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		mayLeave(t)
		const sender, receiver = 4242, 4343
		svc := service.New(service.Config{})
		defer svc.Close()
		path := filepath.Join(openDir(t), "s")
		srv, err := server.Listen(path, svc, server.Config{Mode: 0o666, Limits: &unhurried})
		require.NoError(t, err)
		defer srv.Close()
		c, err := Dial(context.Background(), path)
		require.NoError(t, err)
		defer c.Close()
		spec.Access.UIDs = []uint32{uint32(os.Getuid()), sender, receiver}
		makeChannel(t, c, createPool(t, c, spec), mempool.ChannelSpec{Capacity: 8})

		consumer := spawn(t, "consume abroad", path, as(receiver))
		require.Equal(t, "ready", consumer.says())
		producer := spawn(t, "produce abroad", path, as(sender))
		require.Equal(t, "ready", producer.says())
		for n := 1; n <= 20; n++ { // more frames than the channel keeps, so blocks are used again in order
			producer.tell(fmt.Sprint("send ", n, " ", 5000*n))
			require.Equal(t, fmt.Sprint("sent ", n), producer.says())
			require.Equal(t, fmt.Sprintf("got %d %d 0", n, n), consumer.says())
		}
		producer.tell("promise 21 1000")
		require.Equal(t, "sent 21", producer.says())
		producer.tell("keep 21 1000")
		require.Equal(t, "kept 21", producer.says())
		assert.Equal(t, "got 21 21 0", consumer.says(), "the producer reaches the fence, and the consumer goes on")
		producer.tell("promise 22 1000")
		require.Equal(t, "sent 22", producer.says())
		producer.kill()
		assert.Equal(t, "failed 22", consumer.says(), "the service lets the consumer go")
	})
}
