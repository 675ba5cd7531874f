package seqpacket

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// client starts a process of this test binary that connects to l, and returns the service's end. The process is
// killed at the test's end.
func client(t *testing.T, l *Listener, cred *syscall.Credential) (*exec.Cmd, *Conn) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+l.Path())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	n, _, err := c.Recv(make([]byte, 16))
	require.NoError(t, err)
	require.Equal(t, len("hello"), n)
	return cmd, c
}

func kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

func TestPeerIsWhoTheKernelSays(t *testing.T) {
	l := listener(t, ListenConfig{})
	cmd, c := client(t, l, nil)
	p, err := c.Peer()
	require.NoError(t, err)
	groups, err := os.Getgroups()
	require.NoError(t, err)
	require.Equal(t, cmd.Process.Pid, p.PID)
	require.Equal(t, uint32(os.Getuid()), p.UID)
	require.Equal(t, uint32(os.Getgid()), p.GID)
	require.Len(t, p.Groups, len(groups))

	kill(cmd)
	after, err := c.Peer()
	require.NoError(t, err)
	require.Equal(t, p, after)
}

func TestPeerOfAnotherUserWithManyGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("/tmp", "seqpacket")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	l, err := Listen(dir+"/s", ListenConfig{Mode: 0o666})
	require.NoError(t, err)
	defer l.Close()
	cred := &syscall.Credential{Uid: 4242, Gid: 4243}
	for g := range uint32(300) {
		cred.Groups = append(cred.Groups, 5000+g)
	}
	_, c := client(t, l, cred)
	p, err := c.Peer()
	require.NoError(t, err)
	require.Equal(t, Peer{PID: p.PID, UID: 4242, GID: 4243, Groups: cred.Groups}, p)
}

func TestKilledPeer(t *testing.T) {
	l := listener(t, ListenConfig{})
	cmd, c := client(t, l, nil)
	p, err := c.PeerProcess()
	require.NoError(t, err)
	defer p.Close()
	select {
	case <-p.Gone():
		t.Fatal("the peer lives")
	default:
	}
	require.NoError(t, cmd.Process.Kill())
	_, _, err = c.Recv(make([]byte, 16))
	require.Equal(t, io.EOF, err)
	<-p.Gone() // Gone is closed before anybody has waited for the process
	require.NoError(t, c.Close())
}

func TestKilledPeerThatLeftPacketsUnread(t *testing.T) {
	l := listener(t, ListenConfig{})
	cmd, c := client(t, l, nil)
	require.NoError(t, unix.Kill(cmd.Process.Pid, unix.SIGSTOP))
	require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil), "it reads no more")
	fill(t, c)
	done := make(chan error)
	go func() { done <- c.Send([]byte("x"), nil) }()
	require.NoError(t, cmd.Process.Kill())
	require.ErrorIs(t, <-done, ErrPeerClosed)
	_, _, err := c.Recv(make([]byte, 16))
	require.ErrorIs(t, err, ErrPeerClosed)
}

func TestPeerThatClosesItsConnectionIsNotGone(t *testing.T) {
	l := listener(t, ListenConfig{})
	cmd, c := client(t, l, nil)
	p, err := c.PeerProcess()
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, c.Send([]byte("close"), nil))
	_, _, err = c.Recv(make([]byte, 16))
	require.Equal(t, io.EOF, err)
	require.NoError(t, c.Close(), "the process is watched beyond the connection")
	select {
	case <-p.Gone():
		t.Fatal("the peer lives")
	default:
	}
	require.NoError(t, cmd.Process.Kill())
	<-p.Gone()
}

func TestPeerThatWasReapedIsGone(t *testing.T) {
	l := listener(t, ListenConfig{})
	cmd, c := client(t, l, nil)
	kill(cmd)
	p, err := c.PeerProcess()
	require.NoError(t, err)
	<-p.Gone()
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "closing again")
	_, err = openPIDFD(cmd.Process.Pid)
	require.ErrorIs(t, err, ErrPeerGone)
}

func TestClosedProcessIsNeverGone(t *testing.T) {
	l := listener(t, ListenConfig{})
	_, c := client(t, l, nil)
	p, err := c.PeerProcess()
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "closing again")
	select {
	case <-p.Gone():
		t.Fatal("the peer lives")
	default:
	}
}

func TestProcessesAreToldApart(t *testing.T) {
	l := listener(t, ListenConfig{})
	id := func(c *Conn) uint64 {
		p, err := c.PeerProcess()
		require.NoError(t, err)
		defer p.Close()
		return p.ID()
	}
	a, _ := dial(t, l)
	b, _ := dial(t, l)
	_, other := client(t, l, nil)
	require.NotZero(t, id(a))
	require.Equal(t, id(a), id(b), "two connections of one process")
	require.NotEqual(t, id(a), id(other))
}

func TestPIDFDByNumber(t *testing.T) {
	pidfd, err := openPIDFD(os.Getpid())
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(pidfd.Raw()), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	p, err := NewProcess(pidfd)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	_, err = openPIDFD(0)
	require.ErrorIs(t, err, ErrPeerGone)
}

func TestClientsDescriptorsAreRefusedByTheKernel(t *testing.T) {
	l := listener(t, ListenConfig{})
	service, client := dial(t, l)
	if err := service.RefuseFDs(); errors.Is(err, ErrNotSupported) {
		t.Skip(err)
	}
	_, w := pipe(t)
	err := client.Send([]byte("x"), []int{w.Raw()})
	require.ErrorIs(t, err, ErrFDsRefused)
	require.NoError(t, client.Send([]byte("x"), nil))

	require.NoError(t, service.Send([]byte("x"), []int{w.Raw()}), "the service may send them")
	_, fds, err := client.Recv(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, fds.Len())
	require.NoError(t, fds.Close())
}

func TestClientsDescriptorsAreRefusedBeforeAccept(t *testing.T) {
	l := listener(t, ListenConfig{})
	client, err := Dial(t.Context(), l.Path())
	require.NoError(t, err)
	defer client.Close()
	_, w := pipe(t)
	if err := client.RefuseFDs(); errors.Is(err, ErrNotSupported) {
		t.Skip(err)
	}
	err = client.Send([]byte("x"), []int{w.Raw()})
	require.ErrorIs(t, err, ErrFDsRefused)
	require.True(t, strings.Contains(err.Error(), "sendmsg"))
}
