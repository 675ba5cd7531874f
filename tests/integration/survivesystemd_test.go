package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// manager stands for systemd: it starts a service, hears its notes and holds its descriptors.
type manager struct {
	*testing.T
	notify *net.UnixConn
	path   string

	mu    sync.Mutex
	held  map[string]*os.File
	notes []string
}

func newManager(t *testing.T) *manager {
	m := &manager{T: t, path: filepath.Join(t.TempDir(), "notify"), held: make(map[string]*os.File)}
	var err error
	m.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(t, err)
	heard := make(chan struct{})
	t.Cleanup(func() {
		_ = m.notify.Close()
		<-heard
		for _, f := range m.held {
			_ = f.Close()
		}
	})
	go func() {
		defer close(heard)
		m.hear()
	}()
	return m
}

func (m *manager) hear() {
	data, control := make([]byte, 8192), make([]byte, 4096)
	for {
		n, size, _, _, err := m.notify.ReadMsgUnix(data, control)
		if err != nil {
			return
		}
		text := string(data[:n])
		m.mu.Lock()
		var file *os.File
		messages, _ := syscall.ParseSocketControlMessage(control[:size])
		for _, one := range messages {
			if fds, err := syscall.ParseUnixRights(&one); err == nil {
				syscall.CloseOnExec(fds[0])
				file = os.NewFile(uintptr(fds[0]), "held")
			}
		}
		_, name, _ := strings.Cut(text, "FDNAME=")
		switch {
		case strings.HasPrefix(text, "FDSTORE=1"):
			_ = m.held[name].Close()
			m.held[name] = file
		case strings.HasPrefix(text, "FDSTOREREMOVE=1"):
			_ = m.held[name].Close()
			delete(m.held, name)
		case file != nil: // BARRIER=1
			_ = file.Close()
		default:
			m.notes = append(m.notes, text)
		}
		m.mu.Unlock()
	}
}

// start starts `poolsvc serve` with what the manager holds.
func (m *manager) start(env []string, args ...string) *exec.Cmd {
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" serve "$@"`, rig.Poolsvc(m)}, args...)...)
	var names []string
	for name, f := range m.held {
		names, cmd.ExtraFiles = append(names, name), append(cmd.ExtraFiles, f)
	}
	cmd.Env = append(append(os.Environ(), env...), "NOTIFY_SOCKET="+m.path, fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	require.NoError(m, cmd.Start())
	return cmd
}

// heard waits for a note of the service.
func (m *manager) heard(note string) {
	require.Eventually(m, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return strings.Contains(strings.Join(m.notes, "\n")+"\n", note+"\n")
	}, time.Minute, time.Millisecond, note)
}

func (m *manager) names() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.held)
}

// useAcross allocates, lets `die` end the service, and uses the memory afterwards.
func useAcross(t *testing.T, socket string, die func()) {
	c, err := bridge.Dialer{Wait: true}.Dial(t.Context(), socket)
	require.NoError(t, err)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	l, err := p.TryAllocate(t.Context(), mempool.Bytes(4096))
	require.NoError(t, err)
	require.NoError(t, l.Fill(t.Context(), 0, 4096, 7))
	die()
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, stats.Leases)
	assert.Equal(t, mempool.GuardWatches, stats.Guard)
	b, err := l.Bytes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, byte(7), b[4095])
	require.NoError(t, c.Close())
}

// unit makes the socket of a socket unit.
func (m *manager) unit(socket string) {
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	require.NoError(m, err)
	listener.SetUnlinkOnClose(false)
	m.held["poolsvc.socket"], err = listener.File()
	require.NoError(m, err)
	require.NoError(m, listener.Close())
}

func TestAServiceUsesTheDescriptorStoreOfSystemd(t *testing.T) {
	for _, unit := range []bool{false, true} {
		m, socket := newManager(t), filepath.Join(t.TempDir(), "s")
		args := []string{"--socket", socket, "--pool", "name=p,kind=host,max=64MiB"}
		if unit {
			m.unit(socket)
		}
		before := m.names()
		cmd := m.start([]string{"FDSTORE=512"}, args...)
		m.heard("READY=1")
		useAcross(t, socket, func() {
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
			cmd = m.start([]string{"FDSTORE=512"}, args...)
		})
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
		_, err := os.Lstat(socket)
		assert.Equal(t, unit, err == nil, "the file stays if the unit made it")
		require.Eventually(t, func() bool { return m.names() == before }, time.Minute, time.Millisecond, "a service that ends gives its descriptors back")
	}
}

func TestWithoutAStoreOfSystemdAGuardPassesOnWhatIsForSystemdAndKeepsTheSocketOfItsUnit(t *testing.T) {
	m, socket := newManager(t), filepath.Join(t.TempDir(), "s")
	m.unit(socket)
	cmd := m.start([]string{"WATCHDOG_USEC=100000", "WATCHDOG_PID=1"}, "--pool", "name=p,kind=host,max=64MiB")
	m.heard("READY=1")
	m.heard("WATCHDOG=1")
	useAcross(t, socket, func() { killService(t, cmd.Process.Pid) })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	m.heard("STOPPING=1")
	require.FileExists(t, socket, "the unit made it")
	assert.Equal(t, 1, m.names())
}
