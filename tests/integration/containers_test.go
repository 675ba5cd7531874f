package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// containedRole is an environment variable. If it is set, this program is a client in a container, and the value of the
// variable is the client's role.
const containedRole = "POOLBRIDGE_TEST_CONTAINED"

func TestMain(m *testing.M) {
	be, role := beClient, os.Getenv(containedRole)
	if role == "" {
		be, role = beNeighbor, os.Getenv(neighborRole)
	}
	if role == "" {
		os.Exit(m.Run())
	}
	if err := be(role); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

const containedFrames, containedWords = 20, 4096

func containedFrame(n int) []byte { return bytes.Repeat([]byte{byte(n)}, containedWords) }

// beClient does the work of a client in a container. With the role "produce", the client publishes frames; with another
// role, it takes frames.
func beClient(role string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getpid() != 1 {
		return fmt.Errorf("process %d, expected 1: this is no container", os.Getpid())
	}
	c, err := bridge.Dialer{Wait: true}.Dial(ctx, os.Getenv("POOLBRIDGE_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	pool, err := c.TryOpenPool(ctx, "p")
	if err != nil {
		return err
	}
	if role == "produce" {
		ch, err := c.CreateChannel(ctx, mempool.ChannelSpec{Name: "c", Pool: pool.Info().ID, Mode: mempool.WorkQueue, Capacity: 4})
		if err != nil {
			return err
		}
		for n := 1; n <= containedFrames; n++ { // more than the channel keeps
			l, err := pool.Allocate(ctx, mempool.Bytes(containedWords))
			if err == nil {
				err = l.CopyFrom(ctx, 0, containedFrame(n))
			}
			if err == nil {
				_, err = ch.Publish(ctx, l, mempool.FrameOptions{})
			}
			if err != nil {
				return err
			}
		}
		return ch.Close(ctx)
	}
	ch, err := c.OpenChannel(ctx, "c")
	if err != nil {
		return err
	}
	n := 0
	for f, err := range ch.Frames(ctx, mempool.SubscribeOptions{}) {
		if err != nil {
			return err
		}
		n++
		got := make([]byte, containedWords)
		if err := f.Lease.CopyTo(ctx, got, 0); err != nil {
			return err
		}
		if !bytes.Equal(got, containedFrame(n)) {
			return fmt.Errorf("frame %d has other content", n)
		}
		if err := f.Release(); err != nil {
			return err
		}
	}
	fmt.Println("frames:", n)
	return nil
}

// contained is a shell script. It mounts the file systems of a container, drops all privileges, and then runs the
// program in its arguments.
const contained = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
`

// inContainer returns a command that runs in its own PID, mount, IPC and UTS namespaces. If users is true, the command
// also has its own user namespace, in which uid is the only user. Otherwise the command runs as the user uid.
func inContainer(uid int, users bool, name string, args ...string) *exec.Cmd {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	first := []string{"-c", contained, "container"}
	if users {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		attr.GidMappingsEnableSetgroups, attr.Credential = true, &syscall.Credential{} // the command begins as user 0 of its namespace
	} else {
		first = append(first, fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--clear-groups")
	}
	cmd := exec.Command("/bin/sh", append(append(first, name), args...)...)
	cmd.SysProcAttr = attr
	return cmd
}

// needContainers skips a test on a machine without namespaces.
func needContainers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make containers of several users")
	}
	for _, users := range []bool{false, true} {
		if out, err := inContainer(4242, users, "/bin/true").CombinedOutput(); err != nil {
			t.Skipf("containers need user namespaces that may mount /proc, and setpriv of util-linux: %v: %s", err, out)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	pidfd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("before Linux 6.5 a service cannot know processes of another container")
	}
	require.NoError(t, err)
	require.NoError(t, unix.Close(pidfd))
}

// copyOf copies a program into the folder dir, so that every user can run the program.
func copyOf(t *testing.T, program, dir string) string {
	t.Helper()
	from, err := os.Open(program)
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(dir, filepath.Base(program)), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, errors.Join(err, to.Close()))
	return to.Name()
}

// The service and each client run in separate containers, like pods on a node. The containers share only the folder of
// the socket. A user in a client's container has another user id outside the container. The service sees the user id
// outside.
func TestUnprivilegedContainersShareMemoryAndStrangersGetNone(t *testing.T) {
	needContainers(t)
	const server, sender, receiver, stranger = 4141, 4242, 4343, 4444
	programs, folder := openDir(t), openDir(t)
	require.NoError(t, os.Chown(folder, server, server))
	poolsvc := copyOf(t, rig.Poolsvc(t), programs)
	self, err := os.Executable()
	require.NoError(t, err)
	self = copyOf(t, self, programs)
	socket := filepath.Join(folder, "s")

	var log strings.Builder
	ready, listens, err := os.Pipe()
	require.NoError(t, err)
	defer ready.Close()
	service := inContainer(server, false, poolsvc, "serve", "--socket", socket, "--mode", "0666", "--ready-fd", "3",
		"--pool", fmt.Sprintf("name=p,kind=host,max=1MiB,uid=%d,uid=%d", sender, receiver))
	service.Stderr, service.ExtraFiles = &log, []*os.File{listens}
	require.NoError(t, service.Start())
	t.Cleanup(func() { _ = service.Process.Kill() })
	require.NoError(t, listens.Close())
	said, err := io.ReadAll(ready)
	require.NoError(t, err)
	require.Equal(t, socket+"\n", string(said), "it listens, and says no more")
	client := func(uid int, role string) (*exec.Cmd, *strings.Builder) {
		cmd := inContainer(uid, true, self)
		cmd.Env = append(os.Environ(), containedRole+"="+role, "POOLBRIDGE_SOCKET="+socket)
		said := new(strings.Builder)
		cmd.Stdout, cmd.Stderr = said, said
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, said
	}
	consumer, got := client(receiver, "consume")
	producer, sent := client(sender, "produce")
	require.NoError(t, producer.Wait(), "%s", sent)
	require.NoError(t, consumer.Wait(), "%s", got)
	assert.Equal(t, fmt.Sprintf("frames: %d\n", containedFrames), got.String())
	other, refused := client(stranger, "consume")
	require.Error(t, other.Wait())
	assert.Contains(t, refused.String(), fmt.Sprintf("that user %d (", stranger), "it is known by its user outside")
	require.NoError(t, service.Process.Signal(syscall.SIGTERM))
	require.NoError(t, service.Wait(), "%s", &log)
}
