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

	"github.com/poolbridge/poolbridge/mempool"
)

func init() {
	children["produce abroad"] = abroad(produce)
	children["consume abroad"] = abroad(consume)
}

// userVariable is who a child abroad becomes.
const userVariable = "POOLBRIDGE_TEST_USER"

// ownNamespaces is what a child abroad shares with nobody.
const ownNamespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC

// as makes a child one of another user with PID, mount and IPC namespaces of its own.
func as(user int) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, userVariable+"="+strconv.Itoa(user))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces}
	}
}

// abroad settles a child in its namespaces, with a /dev/shm of its own, before it does anything else.
func abroad(do func() error) func() error {
	return func() error {
		user, err := strconv.Atoi(os.Getenv(userVariable))
		if err != nil {
			return err
		}
		err = errors.Join(
			os.NewSyscallError("mount /", unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")),
			os.NewSyscallError("mount /dev/shm", unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "")),
			// A driver looks itself up in /proc, and does not start where that is another namespace's.
			os.NewSyscallError("mount /proc", unix.Mount("proc", "/proc", "proc", 0, "")),
			syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user))
		if err != nil {
			return err
		}
		return do()
	}
}

// mayLeave skips a test where processes cannot be made so.
func mayLeave(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for processes of other users in other namespaces")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces}
	if err := cmd.Run(); errors.Is(err, syscall.EPERM) {
		t.Skip("namespaces are not permitted here: ", err)
	}
}

func TestAStreamNeedsNoUserNamespaceOrSharedMemoryInCommon(t *testing.T) {
	kinds(t, func(t *testing.T, spec mempool.PoolSpec) {
		mayLeave(t)
		const sender, receiver = 4242, 4343
		svc := mempool.NewService(mempool.Config{})
		defer svc.Close()
		path := filepath.Join(openDir(t), "s")
		server, err := listen(path, svc, ServerConfig{Mode: 0o666}, unhurried)
		require.NoError(t, err)
		defer server.Close()
		c, err := Dial(context.Background(), path)
		require.NoError(t, err)
		defer c.Close()
		spec.Access.UIDs = []uint32{uint32(os.Getuid()), sender, receiver}
		makeChannel(t, c, createPool(t, c, spec), mempool.ChannelSpec{Capacity: 8})

		consumer := spawn(t, "consume abroad", path, as(receiver))
		require.Equal(t, "ready", consumer.says())
		producer := spawn(t, "produce abroad", path, as(sender))
		require.Equal(t, "ready", producer.says())
		for n := 1; n <= 20; n++ { // more than the channel keeps: blocks are used again, in order
			producer.tell(fmt.Sprint("send ", n, " ", 5000*n))
			require.Equal(t, fmt.Sprint("sent ", n), producer.says())
			require.Equal(t, fmt.Sprintf("got %d %d 0", n, n), consumer.says())
		}
		producer.tell("promise 21 1000")
		require.Equal(t, "sent 21", producer.says())
		producer.tell("keep 21 1000")
		require.Equal(t, "kept 21", producer.says())
		assert.Equal(t, "got 21 21 0", consumer.says(), "the producer reaches the ticket, and the consumer goes on")
		producer.tell("promise 22 1000")
		require.Equal(t, "sent 22", producer.says())
		producer.kill()
		assert.Equal(t, "failed 22", consumer.says(), "the service lets the consumer go")
	})
}
