package seqpacket

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// echoEnv is the name of an environment variable. If the variable is set, the test binary sends back each packet of descriptor 3.
const echoEnv = "SEQPACKET_TEST_ECHO"

// BenchmarkAPacketAndItsAnswer shows what a request to another process takes at least: two system calls on each side, and two processes
// that sleep and wake.
func BenchmarkAPacketAndItsAnswer(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(b, err)
	theirs := os.NewFile(uintptr(fds[1]), "echo")
	echo := exec.Command(os.Args[0])
	echo.Env = append(os.Environ(), echoEnv+"=1")
	echo.ExtraFiles = []*os.File{theirs}
	require.NoError(b, echo.Start())
	require.NoError(b, theirs.Close())
	packet := make([]byte, 128)
	for b.Loop() {
		if _, err := unix.Write(fds[0], packet); err != nil {
			b.Fatal(err)
		}
		if _, err := unix.Read(fds[0], packet); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, unix.Close(fds[0]))
	require.NoError(b, echo.Wait())
}

// answer sends back each packet of descriptor 3, until the other end is closed.
func answer() int {
	packet := make([]byte, 128)
	for {
		n, err := unix.Read(3, packet)
		if err != nil || n == 0 {
			return 0
		}
		if _, err := unix.Write(3, packet[:n]); err != nil {
			return 1
		}
	}
}
